"""Deploy files and --set: one closed schema; errors say where and what would be right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.builders import ASSISTANT

from omni_actors.pipelines.deploy.overlay import read_overlay, read_overrides
from omni_actors.pipelines.deploy.schema import Group, Leaf, option_leaf, settings_schema
from omni_actors.pipelines.deploy.values import like, size
from omni_actors.pipelines.limits import with_engine_options
from omni_actors.pipelines.plan import PlanError
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.protocol.options import Option

SCHEMA = settings_schema(
    replace(ASSISTANT, stages=tuple(map(with_engine_options, ASSISTANT.stages))), [CpuPlatform()], None
)


def values(tmp_path: Path, source: str) -> dict[str, object]:
    file = tmp_path / "deploy.yaml"
    file.write_text(source)
    return {setting.path: setting.value for setting in read_overlay(file, SCHEMA)}


def complaint(tmp_path: Path, source: str) -> str:
    with pytest.raises(PlanError) as caught:
        values(tmp_path, source)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'deploy.yaml'}:")
    return message.removeprefix(f"{tmp_path / 'deploy.yaml'}:")


def test_a_whole_deploy_file(tmp_path: Path) -> None:
    assert values(
        tmp_path,
        """
pipeline: assistant
served_model_name: helper
limits: {max_inflight: 8, max_body_bytes: 1MiB, deadline_s: 30}
stages:
  llm:
    replicas: 2
    threads: 3
    dtype: bfloat16
    balancer: round_robin
    devices: [cpu]
    environment: {MALLOC_ARENA_MAX: 2}
    limits: {max_requests: 4, arena_bytes: "2 MiB"}
    sampling: {temperature: 0.7, top_k: 40}
  acoustic:
    options: {speed: 2}
    start_timeout_s: 9.5
edges:
  acoustic.text: {mode: full, capacity: 2}
""",
    ) == {
        "pipeline": "assistant",
        "served_model_name": "helper",
        "limits.max_inflight": 8,
        "limits.max_body_bytes": 1 << 20,
        "limits.deadline_s": 30.0,
        "stages.llm.replicas": 2,
        "stages.llm.threads": 3,
        "stages.llm.dtype": "bfloat16",
        "stages.llm.balancer": "round_robin",
        "stages.llm.devices": ("cpu",),
        "stages.llm.environment": {"MALLOC_ARENA_MAX": "2"},
        "stages.llm.limits.max_requests": 4,
        "stages.llm.limits.arena_bytes": 2 << 20,
        "stages.llm.sampling.temperature": 0.7,
        "stages.llm.sampling.top_k": 40,
        "stages.acoustic.options.speed": 2.0,
        "stages.acoustic.start_timeout_s": 9.5,
        "edges.acoustic.text.mode": "full",
        "edges.acoustic.text.capacity": 2,
    }


def test_keys_may_be_written_with_dots(tmp_path: Path) -> None:
    assert values(tmp_path, "stages.llm: {replicas: 2}\nedges: {acoustic: {text: {mode: full}}}\n") == {
        "stages.llm.replicas": 2,
        "edges.acoustic.text.mode": "full",
    }


@pytest.mark.parametrize("source", ["", "# nothing\n", "stages:\n", "stages: {llm: }\n"])
def test_empty_parts_set_nothing(tmp_path: Path, source: str) -> None:
    assert values(tmp_path, source) == {}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\nstages:\n  llm:\n    replica: 2\n", "4: stages.llm: unknown key 'replica'; did you mean 'replicas'?"),
        ("stages:\n  lmm: {threads: 1}\n", "2: stages: unknown key 'lmm'; did you mean 'llm'?"),
        ("stage: {}\n", "1: unknown key 'stage'; did you mean 'stages'?"),
        ("stages: {acoustic: {options: {sped: 1}}}\n", "unknown key 'sped'; did you mean 'speed'?"),
        ("edges: {acoustic.txt: {mode: full}}\n", "unknown key 'txt'; did you mean 'text'?"),
        ("pipeline: other\n", "1: 'pipeline' takes assistant, not 'other'"),
        ("limits:\n  max_inflight: 0\n", "2: 'limits.max_inflight' takes a whole number of at least 1, not 0"),
        ("limits: {max_inflight: true}\n", "takes a whole number"),
        ("limits: {deadline_s: .nan}\n", "takes a number"),
        ("limits: {sink_bytes: 5 cats}\n", "takes a number of bytes"),
        ("stages: {llm: {balancer: random}}\n", "takes least_queue or round_robin or prefix_cache, not 'random'"),
        ("stages: {llm: {sampling: {temperature: 3}}}\n", "at least 0 and at most 2"),
        ("stages: {llm: {sampling: {repetition_penalty: 0}}}\n", "takes a number of at least 0.01, not 0"),
        ("stages: {acoustic: {options: {speed: fast}}}\n", "takes a number, as its default 1.0 is, not 'fast'"),
        ("stages: {llm: {environment: {A: [1]}}}\n", "put quotes around the value of A"),
        ("stages: {llm: {devices: cpu}}\n", "takes a list of texts"),
        ("stages: [llm]\n", "1: stages: takes keys with values"),
        ("edges: {llm.text: {mode: chunk}}\n", "'edges.llm.text.mode' takes full, not 'chunk'"),
        ("- a\n", "1: a deploy file: takes keys with values"),
        ("platform: cpu\nplatform: cpu\n", "2: 'platform' is given already in line 1"),
        ("stages.llm.threads: 1\nstages: {llm: {threads: 2}}\n", "2: 'stages.llm.threads' is given already in line 1"),
        ("platform.name: cpu\n", "takes a value and has no key 'name'"),
        ("stages: {llm: {options: {kv_blocks: many}}}\n", "takes a whole number of at least 1, or null, not 'many'"),
        ("stages: {llm: {options: {max_tokens: 1.5}}}\n", "takes a whole number of at least 1, or null, not 1.5"),
        ("stages: {llm: {options: {max_model_len: true}}}\n", "takes a whole number of at least 1, or null, not True"),
        ("stages: {llm: {options: {max_batch: 0}}}\n", "takes a whole number of at least 1, as its default 64 is"),
        ("stages: {llm: {limits: {max_requests: 0}}}\n", "takes a whole number of at least 1, not 0"),
        ("stages: {acoustic: {options: {speed: .nan}}}\n", "takes a number, as its default 1.0 is, not nan"),
        ("limits: {deadline_s: .inf}\n", "takes a number of at least 0.001, not inf"),
        ("stages: {llm: {environment: {A: 1, A: 2}}}\n", "'A' is given twice"),
        ("stages: {llm: {environment: {'A=B': 1}}}\n", "which 'A=B' is not"),
        ("stages: {llm: {environment: {'': 1}}}\n", "which '' is not"),
        ('stages: {llm: {environment: {A: "\\0"}}}\n', "which 'A' is not"),
        ("served_model_name: 2020-99-99\n", "1: month must be in 1..12; put quotes around a text"),
        ("stages: {llm: {replicas: 2000000000}}\n", "takes a whole number of at most 256, not 2000000000"),
        ("stages: {llm: {threads: 99999999999999999999}}\n", "takes a whole number of at most 1024"),
        ("limits: {max_inflight: 99999999999999999999}\n", "takes a whole number of at most"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("{a: " * 3000, "nested too deeply"),
        ("a: b: c\n", "1: not valid YAML: "),
        ("model: !!python/object:os.system x\n", "1: "),
    ],
)
def test_errors_have_the_line_and_the_nearest_key(tmp_path: Path, source: str, message: str) -> None:
    assert message in complaint(tmp_path, source)


def test_an_option_that_is_none_by_default_may_be_set_and_unset(tmp_path: Path) -> None:
    assert values(tmp_path, "stages.llm.options: {kv_blocks: 8, max_tokens: null}\n") == {
        "stages.llm.options.kv_blocks": 8,
        "stages.llm.options.max_tokens": None,
    }


def test_an_option_with_a_type_may_be_unset_whatever_its_default() -> None:
    options = like(2, int, 0)
    assert [options(value) for value in (None, 0, 7)] == [None, 0, 7]
    for wrong in (-1, "2", True, 1.5):
        with pytest.raises(ValueError, match="takes a whole number of at least 0, or null"):
            options(wrong)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the deploy file"):
        read_overlay(tmp_path / "absent.yaml", SCHEMA)


def test_overrides_go_through_the_same_schema() -> None:
    found = read_overrides(
        ["stages.llm.replicas=2", "edges.acoustic.text.mode=full", "stages.llm.devices=[cpu]", "limits.deadline_s=1.5"],
        SCHEMA,
    )
    assert [setting.value for setting in found] == [2, "full", ("cpu",), 1.5]
    assert str(found[0].origin) == "command line --set stages.llm.replicas=2"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("stages.llm.replica=2", "--set stages.llm.replica=2: stages.llm: unknown key 'replica'"),
        ("stages.llm.replicas", "takes path=value"),
        ("stages.llm.replicas=two", "takes a whole number of at least 1, not 'two'"),
        ("stages.llm=2", "'stages.llm' has keys below it"),
        ("stages.llm.devices=[cpu", "the value is not valid YAML"),
        ("stages.llm.devices=" + "[" * 5000, "nested too deeply"),
        ("stages.llm.environment={A: 1, A: 2}", "'A' is given twice"),
        ("served_model_name=2020-99-99", "put quotes around a text"),
        ("served_model_name=", "takes a text, not None"),
    ],
)
def test_wrong_overrides_are_refused(option: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        read_overrides([option], SCHEMA)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given_size", "expected"), [(1, 1), ("64MiB", 64 << 20), ("2 gb", 2 * 10**9), ("10", 10), ("8B", 8)]
)
def test_sizes(given_size: object, expected: int) -> None:
    assert size(given_size) == expected


def test_every_setting_says_what_it_means() -> None:
    def walk(group: Group, above: str) -> list[str]:
        found = []
        for key, node in group.keys.items():
            if isinstance(node, Group):
                found += walk(node, f"{above}{key}.")
            elif isinstance(node, Leaf) and not node.doc:
                found.append(f"{above}{key}")
        return found

    # Options are documented by the pipeline that declares them, and this test's pipeline does not.
    assert walk(SCHEMA, "") == ["stages.acoustic.options.speed"]


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_is_accepted_in_silence_or_crashes(tmp_path_factory: pytest.TempPathFactory, source: str) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "deploy.yaml"
    file.write_text(source, encoding="utf-8", errors="surrogateescape")
    try:
        assert read_overlay(file, SCHEMA) == []
    except PlanError:
        pass


@pytest.mark.parametrize("value", ["!!int ''", "!!bool x", "!!timestamp x", "!!float ''"])
def test_a_tag_that_its_value_does_not_keep_is_refused(value: str) -> None:
    schema = settings_schema(ASSISTANT, [CpuPlatform()], None)
    with pytest.raises(PlanError):
        read_overrides([f"served_model_name={value}"], schema)


@pytest.mark.parametrize(
    ("option", "taken", "refused"),
    [
        (Option(None, type=str, choices=("calm", "glad")), [None, "calm"], ["sad", 1]),
        (Option("calm", choices=("calm", "glad")), ["glad"], [None]),
    ],
)
def test_an_option_of_a_few_texts(option: Option, taken: list[Any], refused: list[Any]) -> None:
    held("mood", option, taken, refused)


@pytest.mark.parametrize(
    ("option", "taken", "refused"),
    [
        (Option(None, type=int), [None, "64MiB", 1], [0, -1]),
        (Option(64 << 20, least=0), [0, "1KiB"], [None, -1, True]),
        (Option(64 << 20, least=128), [128], [127, "64"]),
    ],
)
def test_an_option_of_a_number_of_bytes(option: Option, taken: list[Any], refused: list[Any]) -> None:
    held("cache_bytes", option, taken, refused)


def held(name: str, option: Option, taken: list[Any], refused: list[Any]) -> None:
    leaf = option_leaf(name, option)
    for value in taken:
        leaf.check(value)
    for value in refused:
        with pytest.raises(ValueError, match=r"^takes "):
            leaf.check(value)

"""explain shows every value of a plan, each with where it came from."""

from __future__ import annotations

import json

import pytest
from rich.console import Console
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.pipelines.deploy.overlay import located
from omni_actors.pipelines.deploy.schema import Leaf
from omni_actors.pipelines.explain import as_builtins, as_text, facts, settings_builtins
from omni_actors.pipelines.factory import resolve, settings_of
from omni_actors.pipelines.registry import BUILTINS

DEVICES = "stages.llm.devices=[cpu]"
OVERRIDES = ("stages.llm.replicas=2", "edges.acoustic.text.mode=full", "stages.llm.sampling.temperature=0.5")
PLAN = plan_of(ASSISTANT, *OVERRIDES, DEVICES)


def test_everything_that_has_a_provenance_is_shown() -> None:
    assert PLAN.provenance.keys() <= {fact.path for fact in facts(PLAN)}


def test_everything_that_can_be_set_is_shown() -> None:
    shown = {fact.path: fact for fact in facts(PLAN)}
    for override in OVERRIDES:
        path, _, value = override.partition("=")
        assert str(shown[path].value) == value
        assert shown[path].origin.kind == "command line"
        assert isinstance(located(settings_of(PLAN), tuple(path.split(".")), (), "")[1], Leaf)


@pytest.mark.parametrize("name", BUILTINS)
def test_every_setting_of_our_own_pipelines_says_what_it_means(name: str) -> None:
    meanings = settings_builtins(settings_of(resolve(name, platform="cpu")))
    assert len(meanings) > 20
    assert [path for path, meaning in meanings.items() if not meaning.endswith(".")] == []


def test_paths_are_unique() -> None:
    paths = [fact.path for fact in facts(PLAN)]
    assert len(paths) == len(set(paths))


def test_json_is_json_and_complete() -> None:
    read = json.loads(json.dumps(as_builtins(PLAN)))
    assert read["values"]["stages.llm.replicas"] == {
        "value": 2,
        "origin": "command line",
        "where": "--set stages.llm.replicas=2",
    }
    assert read["stages"] == ["asr", "llm", "acoustic", "vocoder", "media"]
    assert read["edges"][0] == {"from": "asr", "to": "llm.text", "kind": "text"}
    assert read["tasks"]["speech"] == {"inputs": {"text": "acoustic"}, "outputs": {"audio": "vocoder"}}
    assert set(read["values"]) == {fact.path for fact in facts(PLAN)}


def test_the_text_has_the_graph_and_the_values() -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(as_text(PLAN))
    text = console.export_text()
    console.file.close()
    assert "llm → acoustic.text  (text, full, Sentences)" in text
    assert "--set stages.llm.replicas=2" in text
    assert f"--set {DEVICES}" in text  # no markup
    assert "speech" in text


def test_a_steps_budget_is_its_engine_kinds_unless_somebody_says_otherwise() -> None:
    shown = {fact.path: fact for fact in facts(plan_of(ASSISTANT, "stages.llm.compile_budget_s=900"))}
    found = {stage.name: shown[f"stages.{stage.name}.step_budget_s"] for stage in PLAN.stages}
    kinds = {stage.name: stage.declaration.engine for stage in PLAN.stages}
    assert found["media"].value == 60
    assert found["media"].origin.kind == "declaration"
    by_kind = {kinds[name]: fact.value for name, fact in found.items() if name != "media"}
    assert (by_kind.pop("autoregressive"), set(by_kind.values())) == (120, {300})
    assert "killed" in found["llm"].doc
    compiling = shown["stages.llm.compile_budget_s"]
    assert (compiling.value, compiling.origin.kind) == (900, "command line")

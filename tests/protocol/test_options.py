"""One description per option, and the earlier ways to write it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.builders import plan_of

from omni_actors.pipelines import plugin_check as pipeline_check
from omni_actors.pipelines.declaration import Pipeline, Stage, Task
from omni_actors.pipelines.deploy.schema import option_leaf
from omni_actors.pipelines.explain import settings_builtins
from omni_actors.pipelines.factory import settings_of
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.planning import platforms
from omni_actors.platforms import plugin_check as platform_check
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import default_options, platform_options
from omni_actors.plugins.subprocess_probe import SubprocessProbe, run_probes
from omni_actors.protocol.options import Option, defaults_of, filled

OLD: dict[str, Any] = {
    "defaults": {"pitch": 440.0, "width": None, "name": "a"},
    "options_doc": {"pitch": "Hz of the note.", "width": "Most columns."},
    "options_type": {"width": int},
    "options_least": {"pitch": 1, "width": 2},
}
NEW = {
    "pitch": Option(440.0, "Hz of the note.", least=1),
    "width": Option(None, "Most columns.", type=int, least=2),
    "name": Option("a"),
}


def old_stage() -> Stage:
    with pytest.warns(DeprecationWarning, match="Stage: give options instead of defaults, options_doc"):
        return Stage("tone", "pkg.module:Engine", "", sections=("speech",), emits="audio", **OLD)


def test_a_stage_with_the_old_dicts_has_the_same_options() -> None:
    assert old_stage().options == NEW


def test_the_old_dicts_are_read_from_a_stage() -> None:
    stage = Stage("tone", "pkg.module:Engine", options=NEW)
    for name, expected in OLD.items():
        with pytest.warns(DeprecationWarning, match=f"Stage.{name}: read options instead"):
            assert getattr(stage, name) == expected


def test_replacing_old_defaults_keeps_what_else_is_known_of_an_option() -> None:
    stage = Stage("tone", "pkg.module:Engine", options=NEW)
    changes: dict[str, Any] = {"defaults": {"pitch": 220.0, "volume": 3}}
    with pytest.warns(DeprecationWarning, match="Stage: give options instead of defaults"):
        changed = replace(stage, **changes)
    assert changed.options == {"pitch": replace(NEW["pitch"], default=220.0), "volume": Option(3)}


def test_a_pipeline_with_the_old_dicts_is_planned() -> None:
    tasks = (Task("speech", {"text": "tone"}, {"audio": "tone"}),)
    pipeline = Pipeline("old", (old_stage(),), tasks=tasks, sample_rate=8000)
    plan = plan_of(pipeline, "stages.tone.options.width=5")
    assert plan.stage("tone").options == {"pitch": 440.0, "width": 5, "name": "a"}
    assert settings_builtins(settings_of(plan))["stages.tone.options.pitch"] == "Hz of the note."
    with pytest.raises(PlanError, match="at least 2"):
        plan_of(pipeline, "stages.tone.options.width=1")


def old_platform() -> type[CpuPlatform]:
    with pytest.warns(DeprecationWarning, match="platform Fast states options_doc, options_type, options_choices"):

        class Fast(CpuPlatform):
            contract = 1
            name = "fast"
            options: Mapping[str, Any] = {**CpuPlatform.options, "gear": "low", "turbo": None}  # type: ignore[misc]
            options_doc = {"gear": "Speed of the wheels.", "turbo": "Whether to use it."}
            options_type = {"turbo": bool}
            options_choices = {"gear": ("low", "high")}

    return Fast


def test_a_platform_with_the_old_dicts_has_the_same_options() -> None:
    options = platform_options(old_platform())
    assert options["gear"] == Option("low", "Speed of the wheels.", choices=("low", "high"))
    assert options["turbo"] == Option(None, "Whether to use it.", type=bool)
    assert options["numa"] == CpuPlatform.options["numa"]
    assert default_options(old_platform()) == {"dtype": "float32", "numa": True, "gear": "low", "turbo": None}


def test_the_old_dicts_are_read_from_a_platform() -> None:
    with pytest.warns(DeprecationWarning, match="CpuPlatform.options_doc: read options instead"):
        assert CpuPlatform.options_doc == {name: option.doc for name, option in CpuPlatform.options.items()}
    with pytest.warns(DeprecationWarning, match="options_type"):
        assert CpuPlatform.options_type == {}


@pytest.mark.parametrize(
    ("option", "taken", "refused"),
    [
        (Option(1.0, least=0.5), (0.5, 3), (0.4, None, "1")),
        (Option(None, type=int, least=1), (1, None), (0, 1.5)),
        (Option("low", choices=("low", "high")), ("high",), ("higher", None)),
        (Option(True), (False,), (0, None)),
    ],
)
def test_an_option_takes_its_type_within_its_bounds(
    option: Option, taken: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    check = option_leaf("any", option).check
    assert [check(value) for value in taken] == list(taken)
    for value in refused:
        with pytest.raises(ValueError, match="takes"):
            check(value)


def test_given_values_stand_over_defaults() -> None:
    assert defaults_of(NEW) == {"pitch": 440.0, "width": None, "name": "a"}
    assert filled(NEW, {"width": 3, "other": 1}) == {"pitch": 440.0, "width": 3, "name": "a", "other": 1}


# --- aliases ---------------------------------------------------------------------------------------------------------

BATCH = "stages.tone.options.max_batch"
ALIAS = "stages.tone.options.max_num_seqs"
ALIASED = Pipeline(
    "aliased",
    (
        Stage(
            "tone",
            "pkg.module:Engine",
            emits="text",
            options={"max_batch": Option(8, "Most at once.", least=1, aliases=("max_num_seqs",))},
        ),
    ),
    tasks=(Task("chat", {"text": "tone"}, {"text": "tone"}),),
)


def aliased(tmp_path: Path, overlay: str, *overrides: str) -> Plan:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(overlay)
    return plan_of(ALIASED, *overrides, overlay=deploy)


def test_an_alias_sets_the_option_in_a_deploy_file_and_on_the_command_line(tmp_path: Path) -> None:
    plan = aliased(tmp_path, f"{ALIAS}: 3\n")
    assert plan.stage("tone").options == {"max_batch": 3}
    assert str(plan.provenance[BATCH]).endswith("deploy.yaml:1")
    plan = aliased(tmp_path, f"{BATCH}: 3\n", f"{ALIAS}=4")
    assert plan.stage("tone").options == {"max_batch": 4}
    assert str(plan.provenance[BATCH]) == f"command line --set {ALIAS}=4"


def test_an_option_is_given_by_one_of_its_names(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=f":2: '{ALIAS}' is given already in line 1 as '{BATCH}'"):
        aliased(tmp_path, f"{BATCH}: 3\n{ALIAS}: 4\n")
    with pytest.raises(PlanError, match=f"'{ALIAS}' and '{BATCH}' are the same option; give one of them"):
        aliased(tmp_path, "", f"{BATCH}=3", f"{ALIAS}=3")


def test_a_wrong_value_and_a_wrong_alias_are_refused_by_the_names_that_were_written(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=f"'{ALIAS}' takes a whole number of at least 1"):
        aliased(tmp_path, f"{ALIAS}: 0\n")
    with pytest.raises(PlanError, match="unknown key 'max_num_seq'; did you mean 'max_num_seqs'"):
        aliased(tmp_path, "", f"{ALIAS[:-1]}=1")


def test_aliases_are_shown_among_the_keys() -> None:
    assert settings_builtins(settings_of(plan_of(ALIASED)))[BATCH] == "Most at once. Also: max_num_seqs."


# --- plug-ins written before there was Option ------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "name", "value"),
    [
        (platform_check.__file__, "old", "tests.protocol.old_plugins:OldPlatform"),
        (pipeline_check.__file__, "old-tones", "tests.protocol.old_plugins:PIPELINE"),
    ],
)
def test_an_old_plugin_is_found_sound(script: str, name: str, value: str) -> None:
    root = str(Path(__file__).parents[2])
    probe = SubprocessProbe(Path(script), {"name": name, "value": value}, {"PYTHONPATH": root})
    (answer,) = run_probes([probe], within_s=30)
    assert not answer.trouble
    assert "broken" not in answer.value


def test_an_old_platform_is_planned_for_and_its_options_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.warns(DeprecationWarning, match="Stage: give options instead of defaults"),
        pytest.warns(DeprecationWarning, match="platform OldPlatform states options_doc"),
    ):
        old: Any = importlib.import_module("tests.protocol.old_plugins").OldPlatform
    monkeypatch.setattr(platforms, "select", lambda name=None: old() if name == "old" else CpuPlatform())
    plan = plan_of(ALIASED, "platforms.old.reserved_bytes=5", platform="old")
    stage = plan.stage("tone")
    assert stage.platform_options == {"peer_access": True, "reserved_bytes": 5, "link": None}
    assert stage.environment_of(0)["OLD_RESERVED"] == "5"
    with pytest.raises(PlanError, match="takes true or false"):
        plan_of(ALIASED, "platforms.old.peer_access=3", platform="old")

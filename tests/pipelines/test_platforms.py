"""Which platform a deployment and each of its stages is on, whose word that is, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.pipelines import builders
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.entrypoints.commands.deployment import Deployment
from omni_actors.pipelines import factory
from omni_actors.pipelines.deploy.overlay import located
from omni_actors.pipelines.deploy.schema import Leaf
from omni_actors.pipelines.explain import facts
from omni_actors.pipelines.factory import resolve, settings_of
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.planning import platforms
from omni_actors.pipelines.registry import Registry
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import Detection, Device, OmniPlatform
from omni_actors.platforms.select import select
from omni_actors.protocol.options import Option


class Abacus(OmniPlatform):
    """A platform whose device is always there."""

    contract = 1
    name = "abacus"
    default_dtype = "bfloat16"
    dtypes = ("bfloat16",)
    engines: ClassVar[Mapping[str, str]] = {"autoregressive": "abacus:Rows", "generation": "abacus:Beads"}
    options: ClassVar[Mapping[str, Option]] = {"beads": Option(10, "Beads on a wire.")}

    def detect(self) -> Detection:
        return Detection(True, True, "it lies on the desk")

    def devices(self) -> tuple[Device, ...]:
        return (Device("abacus:0", None), Device("abacus:1", None))

    def cores(self) -> int:
        return 4

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {"ABACUS": f"{device} {threads} {options['beads']}"}


class Slide(Abacus):
    name = "slide"


@pytest.fixture(autouse=True)
def a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, and two platforms more that can be asked for; nothing but the cpu is detected."""
    named = {kind.name: kind for kind in (Abacus, Slide)}

    def chosen(name: str | None = None) -> OmniPlatform:
        if name is None:
            return CpuPlatform()
        return named[name]() if name in named else select(name)

    monkeypatch.delenv(platforms.VARIABLE, raising=False)
    monkeypatch.setattr(CpuPlatform, "cores", lambda self: 8)
    monkeypatch.setattr(platforms, "select", chosen)
    monkeypatch.setattr(factory, "select", chosen)
    monkeypatch.setattr(builders, "_CURRENT", ASSISTANT, raising=False)


def assistant(*overrides: str, deploy: Path | None = None, platform: str | None = None) -> Plan:
    registry = Registry({"assistant": f"{builders.__name__}:_CURRENT"})
    return resolve("assistant", overlay=deploy, overrides=overrides, platform=platform, registry=registry)


def origin(plan: Plan, path: str) -> tuple[str, str]:
    found = {fact.path: fact.origin for fact in facts(plan)}[path]
    return found.kind, found.where


def test_the_command_line_comes_before_the_variable_before_the_file_before_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("\nplatform: abacus\n")
    assert origin(assistant(), "platform") == ("platform", "detected")
    plan = assistant(deploy=deploy)
    assert (plan.platform, origin(plan, "platform")) == ("abacus", ("overlay", f"{deploy}:2"))
    monkeypatch.setenv(platforms.VARIABLE, "slide")
    plan = assistant(deploy=deploy)
    assert (plan.platform, origin(plan, "platform")) == ("slide", ("environment", "OMNI_ACTORS_PLATFORM=slide"))
    assert origin(plan, "stages.llm.platform") == ("environment", "OMNI_ACTORS_PLATFORM=slide")
    plan = assistant(deploy=deploy, platform="cpu")
    assert (plan.platform, origin(plan, "stages.llm.platform")) == ("cpu", ("command line", "--platform cpu"))


@pytest.mark.parametrize("nothing", ["", "  "])
def test_a_variable_that_holds_nothing_says_nothing(nothing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(platforms.VARIABLE, nothing)
    assert origin(assistant(), "platform") == ("platform", "detected")


def test_a_platform_that_is_not_there_is_told_with_whose_word_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="--platform tpu: there is no platform 'tpu'"):
        assistant(platform="tpu")
    monkeypatch.setenv(platforms.VARIABLE, "tpu")
    with pytest.raises(PlanError, match="OMNI_ACTORS_PLATFORM=tpu: there is no platform 'tpu'"):
        assistant()


@pytest.mark.parametrize(
    "source",
    [
        "stages: {llm: {platform: abacus}, vocoder: {platform: cpu}}\nplatforms: {abacus: {beads: 7}}",
        "stages.llm.platform: abacus\nstages.vocoder: {platform: cpu}\nplatforms.abacus.beads: 7",
    ],
)
def test_stages_of_one_deployment_are_on_platforms_of_their_own(tmp_path: Path, source: str) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(source)
    plan = assistant(deploy=deploy)
    llm, vocoder = plan.stage("llm"), plan.stage("vocoder")
    assert (plan.platform, llm.platform, vocoder.platform) == ("cpu", "abacus", "cpu")
    assert (llm.device, llm.dtype, llm.engine) == ("abacus:0", "bfloat16", "abacus:Rows")
    assert (vocoder.device, vocoder.dtype) == ("cpu", "float32")
    assert origin(plan, "stages.llm.platform") == ("overlay", f"{deploy}:1")
    assert origin(plan, "stages.llm.devices") == ("platform", "abacus")
    assert origin(plan, "stages.llm.dtype") == ("platform", "abacus")


def test_threads_are_shared_out_of_what_the_stages_own_platform_has() -> None:
    plan = assistant("stages.llm.platform=abacus")
    assert (plan.stage("llm").threads, plan.stage("vocoder").threads) == (2, 1)
    assert origin(plan, "stages.llm.threads") == ("platform", "abacus, 4 cores shared by weight")
    assert origin(plan, "stages.vocoder.threads") == ("platform", "cpu, 8 cores shared by weight")
    assert assistant().stage("llm").threads == 4


def test_what_a_platform_can_be_told_reaches_its_workers_only() -> None:
    plan = assistant("stages.llm.platform=abacus", "platforms.abacus.beads=7")
    assert plan.stage("llm").environment_of(0)["ABACUS"] == "abacus:0 2 7"
    assert plan.hello("llm", 0, 1).platform_options == {"beads": 7}
    assert plan.hello("llm", 0, 1).platform.endswith(":Abacus")
    assert "beads" not in plan.hello("vocoder", 0, 1).platform_options
    shown = {fact.path: fact for fact in facts(plan)}["platforms.abacus.beads"]
    assert (shown.value, shown.origin.kind, shown.doc) == (7, "command line", "Beads on a wire.")


def test_the_options_of_every_platform_in_use_can_be_set_and_of_no_other() -> None:
    plan = assistant("stages.llm.platform=abacus", platform="slide")
    schema = settings_of(plan)
    for path in ("platforms.abacus.beads", "platforms.slide.beads"):
        assert isinstance(located(schema, tuple(path.split(".")), (), "")[1], Leaf)
    with pytest.raises(PlanError, match=r"platforms.abacus: unknown key 'bead'; did you mean 'beads'"):
        assistant("stages.llm.platform=abacus", "platforms.abacus.bead=1")
    with pytest.raises(PlanError, match="platforms: unknown key 'abacus'; known: cpu"):
        assistant("platforms.abacus.beads=1")
    with pytest.raises(PlanError, match="unknown key 'abacuss'; did you mean 'abacus'"):
        assistant("stages.llm.platform=abacus", "platforms.abacuss.beads=1")


@pytest.mark.parametrize("options", ["platforms: {tpu: {chips: 4}, slide: {beads: 7}}", "platforms.tpu.chips: 4"])
def test_a_file_for_another_machine_runs_where_the_command_line_says(
    options: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(f"platform: tpu\nstages.llm.platform: slide\n{options}\n")
    with caplog.at_level("INFO", "omni_actors.pipelines"):
        plan = assistant("stages.llm.platform=abacus", deploy=deploy, platform="cpu")
    assert (plan.platform, plan.stage("llm").platform, plan.stage("vocoder").platform) == ("cpu", "abacus", "cpu")
    assert any("nothing runs there: 'platforms.tpu" in message for message in caplog.messages)
    assert not any(fact.path.startswith(("platforms.tpu", "platforms.slide")) for fact in facts(plan))
    with pytest.raises(PlanError, match="there is no platform 'tpu'"):
        assistant(deploy=deploy)
    deploy.write_text("platform: tpu\nplatforms: {slide: {beads: 7}}\n")
    with pytest.raises(PlanError, match="unknown key 'slide'"):
        assistant(deploy=deploy, platform="cpu")


@pytest.mark.parametrize(
    ("platform", "option", "takes"),
    [("cpu", "dtype=float64", "float32 or bfloat16 or auto"), ("cuda", "attention=fast", "auto or flash or triton")],
)
def test_an_option_that_has_choices_takes_no_other(platform: str, option: str, takes: str) -> None:
    with pytest.raises(PlanError, match=f"takes {takes}"):
        assistant(f"platforms.{platform}.{option}", platform=platform)


def test_devices_and_dtypes_are_checked_by_the_stages_own_platform() -> None:
    given = ("stages.llm.platform=abacus", "stages.llm.devices=[abacus:1, abacus:0]")
    assert assistant(*given).stage("llm").devices == ("abacus:1", "abacus:0")
    with pytest.raises(PlanError, match="platform 'abacus' has no device 'cpu'"):
        assistant("stages.llm.platform=abacus", "stages.llm.device=cpu")
    with pytest.raises(PlanError, match="does not compute in 'float32' on platform 'abacus'"):
        assistant("stages.llm.platform=abacus", "stages.llm.dtype=float32")


def test_the_media_process_is_on_the_cpu_unless_it_is_told_otherwise() -> None:
    plan = assistant(platform="slide")
    assert plan.media is not None
    assert (plan.media.platform, plan.stage("llm").platform) == ("cpu", "slide")
    assert origin(plan, "stages.media.platform")[0] == "declaration"


def test_pictures_are_written_on_the_cpu_by_one_thread_wherever_they_are_made() -> None:
    plan = resolve("stub-image", platform="slide")
    assert {stage.name: stage.platform for stage in plan.stages} == {
        "image": "slide",
        "pictures": "cpu",
        "media": "cpu",
    }
    assert (plan.stage("pictures").threads, plan.stage("image").threads) == (1, 4)
    assert origin(plan, "stages.pictures.platform")[0] == "declaration"


def test_the_first_half_of_a_split_stage_may_be_on_another_platform() -> None:
    plan = resolve("causal-lm", platform="cpu", overrides=["stages.llm.prefill.platform=abacus"])
    first, second = plan.stages[0], plan.stages[1]
    assert {first.name: first.platform, second.name: second.platform} == {"llm-prefill": "abacus", "llm": "cpu"}


def test_the_engine_of_a_stage_is_the_command_lines_word_before_the_files(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("stages: {llm: {engine: 'filed:Engine'}, asr: {engine: generation}}\n")
    plan = plan_of(ASSISTANT)
    assert origin(plan, "stages.llm.engine") == ("declaration", "")
    plan = assistant("stages.llm.engine=typed:Engine", deploy=deploy)
    assert (plan.stage("llm").engine, origin(plan, "stages.llm.engine")[0]) == ("typed:Engine", "command line")
    assert plan.stage("asr").engine == CpuPlatform.engines["generation"]
    assert origin(plan, "stages.asr.engine") == ("overlay", f"{deploy}:1")


def test_an_engine_on_the_command_line() -> None:
    plan = Deployment("stub", None, (), "cpu", None, None, engines=("a=generation",)).plan()
    assert plan.stage("a").engine == CpuPlatform.engines["generation"]
    assert origin(plan, "stages.a.engine") == ("command line", "--engine a=generation")
    with pytest.raises(PlanError, match="--engine z=generation: stages: unknown key 'z'"):
        Deployment("stub", None, (), "cpu", None, None, engines=("z=generation",)).plan()

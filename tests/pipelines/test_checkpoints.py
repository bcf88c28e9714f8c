"""Checkpoints by public name, and what a checkpoint's folder says beyond its family's declaration."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.pipelines import builders
from tests.pipelines.builders import ASSISTANT

from omni_actors.entrypoints.commands.deployment import Deployment, ready_plan
from omni_actors.entrypoints.commands.explain import explain
from omni_actors.entrypoints.weights import DeploymentSpec
from omni_actors.pipelines.declaration import PipelineFacts, Task
from omni_actors.pipelines.explain import as_builtins, as_text, facts
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.planning.missing import missing_weights
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.weights.hub import cache_folder, snapshot_folder
from omni_actors.protocol.errors import invalid_request

NAME = "someone/assistant-3b"


def describe(folder: Path) -> PipelineFacts:
    """The family's own reading of its config."""
    config = json.loads((folder / "config.json").read_text())
    return PipelineFacts(
        voices=tuple(config["speakers"]),
        sample_rate=config.get("rate"),
        lacks=tuple(config.get("lacks", ())),
        options=config.get("options", {}),
        tasks=(Task("speech", {"text": "acoustic"}, {"audio": "vocoder"}),) if config.get("speaks_only") else None,
    )


def refuse(folder: Path) -> PipelineFacts:
    raise invalid_request("quantized weights are not served")


FAMILY = replace(
    ASSISTANT,
    architectures=("AssistantModel",),
    checkpoints=(NAME,),
    describe=f"{__name__}:describe",
    languages=("en",),
)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(builders, "_CURRENT", FAMILY, raising=False)
    return Registry({"assistant": f"{builders.__name__}:_CURRENT"})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def write(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["AssistantModel"], "speakers": ["ann", "bob"], **config})
    )
    return folder


def download(cache: Path, name: str = NAME, revision: str = "0a1b", **config: object) -> Path:
    own = cache / f"models--{name.replace('/', '--')}"
    (own / "refs").mkdir(parents=True)
    (own / "refs" / "main").write_text(revision)
    return write(own / "snapshots" / revision, **config)


def plan_of(model: str, registry: Registry, **options: str) -> Plan:
    return resolve(model, platform="cpu", registry=registry, **options)  # type: ignore[arg-type]


def test_a_checkpoint_is_planned_without_its_weights(cache: Path, registry: Registry) -> None:
    plan = plan_of(NAME, registry)
    assert (plan.name, plan.served_model_name, plan.checkpoint) == ("assistant", NAME, NAME)
    assert plan.voices == FAMILY.voices
    missing = str(cache / "models--someone--assistant-3b" / "snapshots" / "main")
    assert missing_weights(plan) == [missing]


def test_explain_says_whose_weights_are_not_there(cache: Path, registry: Registry) -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(as_text(plan_of(NAME, registry)))
    assert "the weights are not on this machine" in console.export_text()
    assert as_builtins(plan_of(NAME, registry))["missing_weights"] == missing_weights(plan_of(NAME, registry)) != []
    download(cache)
    console.print(as_text(plan_of(NAME, registry)))
    assert "Planned by what" not in console.export_text()
    assert as_builtins(plan_of(NAME, registry))["missing_weights"] == []


def test_a_checkpoint_in_the_cache_is_served_from_there(cache: Path, registry: Registry) -> None:
    snapshot = download(cache, rate=16_000)
    plan = plan_of(NAME, registry)
    assert (plan.model, plan.voices, plan.sample_rate, plan.languages) == (
        str(snapshot),
        ("ann", "bob"),
        16_000,
        ("en",),
    )
    assert missing_weights(plan) == []


def test_a_snapshot_that_no_pipeline_names_goes_by_its_architecture(cache: Path, registry: Registry) -> None:
    download(cache, "someone/fine-tuned")
    assert plan_of("someone/fine-tuned", registry).name == "assistant"


def test_a_folder_of_that_name_comes_first(
    tmp_path: Path, cache: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(cache)
    folder = write(tmp_path / "here" / NAME, speakers=["own"])
    monkeypatch.chdir(tmp_path / "here")
    plan = plan_of(NAME, registry)
    assert (plan.model, plan.voices, plan.checkpoint) == (str(folder), ("own",), None)


@pytest.mark.parametrize("by_folder", [True, False])
def test_a_deploy_file_of_another_family_is_refused(
    by_folder: bool, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(FAMILY, name="other", architectures=("OtherModel",), checkpoints=("someone/other",))
    monkeypatch.setattr(builders, "_OTHER", other, raising=False)
    both = Registry({**registry.targets, "other": f"{builders.__name__}:_OTHER"})
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("pipeline: other\nmodel: someone/other\n")
    model = str(write(tmp_path / "folder")) if by_folder else NAME
    with pytest.raises(PlanError, match=r"deploy.yaml places 'other', but '.*' is served by 'assistant'"):
        resolve(model, overlay=deploy, platform="cpu", registry=both)
    assert resolve(model, overlay=deploy, pipeline="other", platform="cpu", registry=both).name == "other"
    # What no pipeline claims is what the file says.
    unknown = write(tmp_path / "unknown", architectures=["NobodysModel"])
    assert resolve(str(unknown), overlay=deploy, platform="cpu", registry=both).name == "other"


@pytest.mark.parametrize("name", ["qwen3-omni", "qwen3-tts-fused"])
def test_a_family_without_a_folder_is_planned_and_not_served(name: str) -> None:
    deployment = Deployment(name, None, (), "cpu", None, None)
    assert deployment.plan().name == name
    with pytest.raises(PlanError, match=f"'{name}' is a pipeline without weights of its own: name a folder"):
        ready_plan(deployment)


def test_a_deploy_file_may_name_a_checkpoint(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "deploy.yaml").write_text(f"model: {NAME}\n")
    plan = resolve(overlay=tmp_path / "deploy.yaml", platform="cpu", registry=registry)
    assert (plan.name, plan.checkpoint) == ("assistant", NAME)


def test_an_unknown_checkpoint_gets_the_nearest_and_the_place_that_was_looked_into(
    cache: Path, registry: Registry
) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of("someone/asistant-3b", registry)
    assert str(cache) in str(caught.value)
    assert f"did you mean '{NAME}'" in str(caught.value)


def test_two_pipelines_that_name_one_checkpoint_need_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "_CURRENT", FAMILY, raising=False)
    monkeypatch.setattr(builders, "_OTHER", replace(FAMILY, name="second"), raising=False)
    registry = Registry({"assistant": f"{builders.__name__}:_CURRENT", "second": f"{builders.__name__}:_OTHER"})
    with pytest.raises(PlanError, match=f"'assistant', 'second' all serve {NAME}"):
        plan_of(NAME, registry)
    assert plan_of(NAME, registry, pipeline="second").name == "second"


def test_serving_a_checkpoint_that_is_not_there_says_what_to_do(
    cache: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(NAME, registry)
    monkeypatch.setattr(DeploymentSpec, "plan", lambda self: plan)
    with pytest.raises(PlanError, match=f"'{NAME}' is not in the Hugging Face cache") as caught:
        ready_plan(Deployment(NAME, None, (), None, None, None, offline=True))
    assert f"models pull {NAME}" in str(caught.value)
    assert str(cache) in str(caught.value)


def test_a_download_that_was_cut_short_is_missing_weights(cache: Path, registry: Registry) -> None:
    snapshot = download(cache)
    index = snapshot / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    (snapshot / "model-1.safetensors").touch()
    (snapshot / "model-2.safetensors").symlink_to("../../blobs/gone")
    assert missing_weights(plan_of(NAME, registry)) == [str(snapshot / "model-2.safetensors")]
    for damaged in ("{", "[]", '{"weight_map": {"a": 5}}'):
        index.write_text(damaged)
        assert missing_weights(plan_of(NAME, registry)) == [str(index)]


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_the_cache_is_where_the_hubs_client_has_it(environment: dict[str, str], folder: str) -> None:
    assert str(cache_folder(environment)) == folder
    assert str(snapshot_folder("a/b", environment)).startswith(f"{folder}/models--a--b/snapshots/")


def test_the_folder_decides_defaults_of_options(tmp_path: Path, registry: Registry) -> None:
    folder = write(tmp_path / "m", options={"acoustic": {"speed": 1.5}})
    plan = plan_of(str(folder), registry)
    assert plan.stage("acoustic").options["speed"] == 1.5
    origins = {fact.path: str(fact.origin) for fact in facts(plan)}
    assert origins["stages.acoustic.options.speed"] == f"model {folder}"
    assert origins["voices"] == f"model {folder}"
    over = resolve(str(folder), platform="cpu", registry=registry, overrides=["stages.acoustic.options.speed=2.0"])
    assert over.stage("acoustic").options["speed"] == 2.0
    assert over.provenance["stages.acoustic.options.speed"].kind == "command line"


def test_stages_that_a_checkpoint_lacks_go_with_what_needs_them(tmp_path: Path, registry: Registry) -> None:
    plan = plan_of(str(write(tmp_path / "m", lacks=["acoustic", "vocoder"])), registry)
    assert [stage.name for stage in plan.stages] == ["asr", "llm", "media"]
    assert [(edge.source, edge.target) for edge in plan.edges] == [("asr", "llm"), ("media", "asr")]
    assert set(plan.tasks) == {"chat", "transcription"}
    assert plan.tasks["chat"].outputs == {"text": "llm"}


def test_a_familys_deploy_file_serves_a_checkpoint_that_lacks_a_stage(
    tmp_path: Path, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(
        "stages: {llm: {replicas: 2}, vocoder: {replicas: 3}}\nedges: {vocoder: {frames: {capacity: 9}}}\n"
    )
    folder = str(write(tmp_path / "m", lacks=["acoustic", "vocoder"]))
    typed = ["stages.acoustic.threads=1"]
    with caplog.at_level(logging.INFO):
        plan = resolve(folder, overlay=deploy, overrides=typed, platform="cpu", registry=registry)
    assert {stage.name: stage.replicas for stage in plan.stages} == {"asr": 1, "llm": 2, "media": 1}
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "no effect" in record.getMessage()]
    assert [(level, message.split("'")[1]) for level, message in said] == [
        ("INFO", "stages.vocoder.replicas"),
        ("INFO", "edges.vocoder.frames.capacity"),
        ("WARNING", "stages.acoustic.threads"),
    ]
    assert "deploy.yaml:1" in said[0][1]
    with pytest.raises(PlanError, match="did you mean 'vocoder'"):
        resolve(folder, overrides=["stages.vocodr.replicas=2"], platform="cpu", registry=registry)
    assert caplog.text.count("vocodr") == 0


def test_a_checkpoint_may_have_tasks_of_its_own(tmp_path: Path, registry: Registry) -> None:
    plan = plan_of(str(write(tmp_path / "m", speaks_only=True)), registry)
    assert set(plan.tasks) == {"speech"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"speakers": 3}, "cannot read the folder"),
        ({"lacks": ["vocodr"]}, "did you mean 'vocoder'"),
        ({"options": {"acoustic": {"sped": 1.0}}}, "did you mean 'speed'"),
    ],
)
def test_a_folder_that_makes_no_sense_is_refused(
    tmp_path: Path, registry: Registry, config: dict[str, object], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan_of(str(write(tmp_path / "m", **config)), registry)


def test_what_a_family_refuses_itself_is_said_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "_CURRENT", replace(FAMILY, describe=f"{__name__}:refuse"), raising=False)
    with pytest.raises(Exception, match=r"^quantized weights are not served$"):
        plan_of(str(write(tmp_path / "m")), Registry({"assistant": f"{builders.__name__}:_CURRENT"}))


@pytest.mark.parametrize("name", Registry.installed([]).checkpoints())
def test_every_checkpoint_that_is_named_can_be_explained_without_weights(name: str) -> None:
    assert isinstance(explain, click.Command)
    said = CliRunner().invoke(explain, [name, "--platform", "cpu", "--json"], catch_exceptions=False)
    assert said.exit_code == 0
    assert json.loads(said.output)["checkpoint"] == name
    assert json.loads(said.output)["served_model_name"] == name

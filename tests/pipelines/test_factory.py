"""From a model's name to a Plan: what is chosen, what it is filled with, and where each value came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pipelines import builders
from tests.pipelines.builders import ASSISTANT, may, needs, plan_of, stage

from omni_actors.cache import CACHE_VARIABLE
from omni_actors.models.weights import demo_folder
from omni_actors.pipelines.declaration import Edge, Pipeline, Task
from omni_actors.pipelines.explain import facts
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import DeploymentLimits, PlanError
from omni_actors.pipelines.planning.missing import missing_weights
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import Device


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "cores", lambda self: 8)


def folder_with(tmp_path: Path, *architectures: str) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"architectures": architectures}))
    return tmp_path / "model"


def test_a_causal_lm_folder_needs_nothing_declared(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "LlamaForCausalLM")
    plan = resolve(str(folder), platform="cpu")
    (llm,) = plan.stages
    assert (plan.name, plan.served_model_name, plan.model) == ("causal-lm", "model", str(folder))
    assert (llm.name, llm.model, llm.threads, llm.device) == ("llm", str(folder), 8, "cpu")
    assert llm.engine == "omni_actors.worker.engines.autoregressive:AutoregressiveEngine"
    assert set(plan.tasks) == {"chat", "completion"}
    assert plan.media is None


@pytest.mark.parametrize("model", [None, "demo", "omni-demo"])
def test_without_a_model_it_is_the_demo(model: str | None) -> None:
    plan = resolve(model, platform="cpu")
    assert (plan.name, plan.model, plan.served_model_name) == ("omni-demo", str(demo_folder()), "omni-demo")
    assert plan.media is not None
    assert plan.media.model is None
    assert plan.stage("llm").model == str(demo_folder() / "llm")


def test_weights_need_not_be_there_to_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(tmp_path))
    plan = resolve(platform="cpu")
    assert demo_folder().parent == tmp_path
    assert str(demo_folder() / "llm") in missing_weights(plan)
    assert missing_weights(resolve("stub", platform="cpu")) == []


def test_a_pipeline_that_names_the_architecture_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "_CURRENT", replace(ASSISTANT, architectures=("OddForCausalLM",)), raising=False)
    registry = Registry({"assistant": f"{builders.__name__}:_CURRENT"})
    plan = resolve(str(folder_with(tmp_path, "OddForCausalLM")), platform="cpu", registry=registry)
    assert plan.name == "assistant"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no model's folder"),
        ("[]", "no model's folder"),
        ('{"architectures": 5}', "no model's folder"),
        ('{"architectures": [[], null]}', "no pipeline serves"),
        ("{}", "none named"),
        ('{"architectures": ["BertModel"]}', "BertModel"),
    ],
)
def test_a_folder_that_nothing_serves_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(PlanError) as caught:
        resolve(str(tmp_path), platform="cpu")
    assert message in str(caught.value)
    assert "--pipeline" in str(caught.value)


def test_a_folder_may_be_served_by_a_named_pipeline(tmp_path: Path) -> None:
    plan = resolve(str(tmp_path), platform="cpu", pipeline="causal-lm")
    assert (plan.name, plan.model) == ("causal-lm", str(tmp_path))


def test_a_name_that_is_nothing_gets_the_nearest() -> None:
    with pytest.raises(PlanError, match="'causal-llm' is neither a pipeline nor a folder; did you mean 'causal-lm'"):
        resolve("causal-llm", platform="cpu")


def test_threads_are_shared_by_weight() -> None:
    plan = plan_of(ASSISTANT)
    assert {s.name: s.threads for s in plan.stages} == {"asr": 1, "llm": 4, "acoustic": 1, "vocoder": 1, "media": 1}
    assert plan.stage("llm").environment_of(0)["OMP_NUM_THREADS"] == "4"
    assert "8 cores" in str(plan.provenance["stages.llm.threads"])


def test_modalities_that_enter_at_one_port_share_an_edge() -> None:
    plan = plan_of(
        Pipeline(
            name="omni",
            stages=(
                stage("encoder", may("media", "media")),
                stage("thinker", may("features", "features"), emits="text"),
                stage("talker", may("reference", "pcm"), emits="audio"),
            ),
            edges=(Edge("encoder", "thinker.features", "features"),),
            tasks=(
                Task(
                    "chat",
                    {"text": "thinker", **dict.fromkeys(("audio", "image", "video"), "encoder.media")},
                    {"text": "thinker"},
                ),
                Task("speech", {"text": "talker", "audio": "talker.reference"}, {"audio": "talker"}),
            ),
        )
    )
    media = [(edge.target, edge.port, edge.kind) for edge in plan.edges if edge.source == "media"]
    assert media == [("encoder", "media", "media"), ("talker", "reference", "pcm")]
    for inputs in (("text", "image"), ("text", "video", "audio"), ("text", "audio", "image", "video")):
        found = subgraph(plan, "chat", inputs, ("text",))
        assert [part.stage.name for part in found.parts] == ["media", "encoder", "thinker"]
        assert len(found.edges) == 2
    assert [part.stage.name for part in subgraph(plan, "chat", ("text",), ("text",)).parts] == ["thinker"]


def test_the_media_stage_and_its_edges_are_added() -> None:
    plan = plan_of(ASSISTANT)
    edge = plan.edges[-1]
    assert (edge.source, edge.target, edge.port, edge.kind, edge.mode, edge.capacity) == (
        "media", "asr", "audio", "pcm", "full", 8,
    )  # fmt: skip
    assert plan.media is not None
    assert (plan.media.engine, plan.media.declaration.sections) == (
        "omni_actors.media.worker.engine:MediaEngine",
        ("clips",),
    )
    assert [s.index for s in plan.stages] == list(range(5))
    assert [e.index for e in plan.edges] == list(range(4))


def test_media_without_audio_input_has_no_edges() -> None:
    speech = replace(ASSISTANT, tasks=(ASSISTANT.tasks[2],))
    plan = plan_of(speech)
    assert plan.media is not None
    assert all(edge.source != "media" for edge in plan.edges)


def test_hello_is_the_whole_configuration_of_a_worker() -> None:
    plan = plan_of(
        ASSISTANT,
        "stages.llm.sampling.temperature=0.5",
        "stages.llm.options.max_batch=3",
        "stages.vocoder.limits.max_batch=5",
    )
    hello = plan.hello("llm", 1, 7, log_level="DEBUG")
    assert (hello.stage, hello.replica, hello.incarnation) == ("llm", 1, 7)
    assert hello.options["sampling"] == {"temperature": 0.5}
    assert (hello.options["max_batch"], hello.options["step_tokens"]) == (3, 512)
    assert plan.hello("vocoder", 0, 1).limits["max_batch"] == 5
    assert [(e.index, e.source) for e in hello.inputs] == [(0, "asr")]
    assert [(e.index, e.target, e.port) for e in hello.outputs] == [(1, "acoustic", "text")]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(hello), type=type(hello)) == hello


def test_the_command_line_stands_over_the_deploy_file(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("stages:\n  a: {replicas: 2, threads: 2}\nserved_model_name: filed\nplatform: cpu\n")
    plan = resolve("stub", overlay=deploy, overrides=["stages.a.replicas=3"])
    assert (plan.stage("a").replicas, plan.stage("a").threads, plan.served_model_name) == (3, 2, "filed")
    assert str(plan.provenance["stages.a.replicas"]) == "command line --set stages.a.replicas=3"
    assert str(plan.provenance["stages.a.threads"]) == f"overlay {deploy}:2"
    assert str(plan.provenance["platform"]) == f"overlay {deploy}:4"
    named = resolve("stub", overlay=deploy, served_name="typed", platform="cpu")
    assert named.served_model_name == "typed"


def test_a_deploy_file_may_name_the_model(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("model: stub\nlimits: {max_inflight: 4}\n")
    plan = resolve(overlay=deploy, platform="cpu")
    assert (plan.name, plan.limits) == ("stub", replace(DeploymentLimits(), max_inflight=4))
    assert str(plan.provenance["model"]) == f"overlay {deploy}:1"
    (tmp_path / "named.yaml").write_text("pipeline: stub\n")
    assert resolve(overlay=tmp_path / "named.yaml", platform="cpu").name == "stub"


@pytest.mark.parametrize("nothing", ["", "  "])
def test_an_empty_name_is_not_the_folder_one_stands_in(
    nothing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder_with(tmp_path, "LlamaForCausalLM"))
    with pytest.raises(PlanError, match=r"command line.*: the name of the model is empty"):
        resolve(nothing, platform="cpu")
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(f"model: {nothing}\n")
    with pytest.raises(PlanError, match=f"{deploy}: the name of the model is empty"):
        resolve(overlay=deploy, platform="cpu")


def test_an_unknown_platform_in_a_deploy_file_is_told_with_the_file(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("platform: tpu\n")
    with pytest.raises(PlanError, match=f"{deploy}:1: there is no platform 'tpu'"):
        resolve("stub", overlay=deploy)


def test_a_deploy_file_for_another_pipeline_is_refused(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("pipeline: omni-demo\n")
    with pytest.raises(PlanError, match="'pipeline' takes stub, not 'omni-demo'"):
        resolve("stub", overlay=deploy, platform="cpu")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.llm.strategy.tensor=2", "stage 'llm': tensor parallel degree 2 is not supported"),
        ("stages.llm.strategy.data=2", "set replicas instead"),
        ("stages.llm.device=cuda:0", "platform 'cpu' has no device 'cuda:0'; it has: cpu"),
        ("stages.llm.dtype=float8", "stage 'llm' does not compute in 'float8'"),
        ("stages.media.dtype=bfloat16", "stage 'media' does not compute in 'bfloat16' on platform 'cpu'"),
        ("stages.media.replicas=2", "stage 'media' runs in one process"),
        ("stages.llm.engine=x", "--set stages.llm.engine=x: stage 'llm' is not written for engine 'x'"),
        ("stages.llm.engine=generation", "stage 'llm' is not written for engine 'generation'"),
        ("stages.llm.platform=tpu", "--set stages.llm.platform=tpu: stage 'llm': there is no platform 'tpu'"),
        ("edges.llm.text.connector=carrier_pigeon", "takes shared_memory"),
        ("stages.media.model=/x", "unknown key 'model'"),
        ("stages.media.options.max_clips=0", "takes a whole number of at least 1"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(Exception) as caught:
        plan_of(ASSISTANT, override)
    assert message in str(caught.value)


@pytest.mark.parametrize("option", ["model=stub", "pipeline=stub", "platform=cpu"])
def test_what_the_command_line_has_a_word_for_is_no_setting(option: str) -> None:
    with pytest.raises(PlanError, match=r"use (the argument MODEL|--pipeline|--platform) instead"):
        plan_of(ASSISTANT, option)


def test_a_named_pipeline_cannot_be_served_by_another() -> None:
    with pytest.raises(PlanError, match="'stub' is a pipeline already"):
        resolve("stub", pipeline="causal-lm", platform="cpu")
    assert resolve("demo", pipeline="omni-demo", platform="cpu").name == "omni-demo"


def test_a_name_is_a_pipeline_though_a_folder_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stub").mkdir()
    assert resolve("stub", platform="cpu").name == "stub"
    with pytest.raises(PlanError, match="no model's folder"):
        resolve("./stub", platform="cpu")


def test_options_of_the_media_process_are_settings() -> None:
    plan = plan_of(ASSISTANT, "stages.media.options.max_seconds=60", "stages.media.options.max_blob_bytes=1MiB")
    assert plan.media is not None
    assert plan.hello("media", 0, 1).options["max_seconds"] == 60.0
    assert plan.media.options["max_blob_bytes"] == 1 << 20


def test_a_platforms_options_lie_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def environment(self: CpuPlatform, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {"LEVEL": str(options["level"])}

    monkeypatch.setattr(CpuPlatform, "options", {"level": 3})
    monkeypatch.setattr(CpuPlatform, "worker_environment", environment)
    assert plan_of(ASSISTANT).stage("llm").environment_of(0)["LEVEL"] == "3"
    assert plan_of(ASSISTANT, "platforms.cpu.level=4").stage("llm").environment_of(0)["LEVEL"] == "4"
    with pytest.raises(PlanError, match="did you mean 'level'"):
        plan_of(ASSISTANT, "platforms.cpu.levl=4")


def test_degree_one_is_accepted() -> None:
    assert plan_of(ASSISTANT, "stages.llm.strategy.tensor=1").stage("llm").strategy.tensor == 1


def test_device_and_devices_in_one_place_are_refused() -> None:
    with pytest.raises(PlanError, match="both device"):
        plan_of(ASSISTANT, "stages.llm.device=cpu", "stages.llm.devices=[cpu]")


def test_replicas_go_around_the_devices() -> None:
    llm = replace(plan_of(ASSISTANT).stage("llm"), devices=("x:0", "x:1"))
    assert [llm.device_of(replica) for replica in range(3)] == ["x:0", "x:1", "x:0"]


def test_each_replica_gets_the_environment_of_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def environment(self: CpuPlatform, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {"VISIBLE": device}

    monkeypatch.setattr(CpuPlatform, "devices", lambda self: (Device("cpu:0", None), Device("cpu:1", None)))
    monkeypatch.setattr(CpuPlatform, "worker_environment", environment)
    plan = plan_of(
        ASSISTANT, "stages.llm.devices=[cpu:0, cpu:1]", "stages.llm.replicas=3", "stages.llm.environment={X: 1}"
    )
    llm = plan.stage("llm")
    assert [llm.environment_of(replica)["VISIBLE"] for replica in range(3)] == ["cpu:0", "cpu:1", "cpu:0"]
    assert [llm.environment_of(replica)["X"] for replica in range(3)] == ["1", "1", "1"]
    shown = {fact.path: fact.value for fact in facts(plan)}
    assert shown["stages.llm.environment"]["cpu:1"]["VISIBLE"] == "cpu:1"
    assert shown["stages.asr.environment"]["VISIBLE"] == "cpu:0"


def test_a_plan_cannot_be_changed() -> None:
    plan = plan_of(ASSISTANT)
    with pytest.raises(FrozenInstanceError):
        plan.name = "other"  # type: ignore[misc]
    for mapping in (plan.tasks, plan.provenance, plan.stage("llm").limits, plan.stage("acoustic").options):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]


@pytest.mark.process
def test_a_broken_plugin_is_one_warning_until_it_is_asked_for(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    plugin = EntryPoint("odd", "no_such_package:PIPELINE", "omni_actors.pipelines")
    registry = Registry.installed([plugin])
    plan = resolve(str(folder_with(tmp_path, "LlamaForCausalLM")), platform="cpu", registry=registry)
    assert plan.name == "causal-lm"
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "odd" in warnings[0]
    with pytest.raises(PlanError, match=r"pipeline plugin 'odd' .* is broken"):
        resolve("odd", platform="cpu", registry=registry)


@pytest.mark.process
def test_a_plugin_that_exits_is_broken_as_one_that_raises(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry.installed([EntryPoint("odd", "exits_at_import:PIPELINE", "omni_actors.pipelines")])
    model = folder_with(tmp_path, "LlamaForCausalLM")
    assert resolve(str(model), platform="cpu", registry=registry).name == "causal-lm"
    why = "it cannot be imported: SystemExit: 0"
    assert f"pipeline plugin 'odd' (exits_at_import:PIPELINE) is broken and ignored: {why}" in caplog.messages
    with pytest.raises(PlanError, match=r"pipeline plugin 'odd' .* is broken"):
        resolve("odd", platform="cpu", registry=registry)


def test_a_plugin_cannot_take_a_builtin_name(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry.installed([EntryPoint("stub", "elsewhere:PIPELINE", "omni_actors.pipelines")])
    assert registry.load("stub").name == "stub"
    assert "elsewhere:PIPELINE" in caplog.text


def test_two_pipelines_for_one_architecture_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "_CURRENT", replace(ASSISTANT, architectures=("Odd",)), raising=False)
    monkeypatch.setattr(builders, "_OTHER", replace(ASSISTANT, name="second", architectures=("Odd",)), raising=False)
    registry = Registry({"a": f"{builders.__name__}:_CURRENT", "b": f"{builders.__name__}:_OTHER"})
    with pytest.raises(PlanError, match="'a', 'b' all serve Odd"):
        registry.for_architecture("Odd")


def test_what_is_no_pipeline_is_broken() -> None:
    with pytest.raises(PlanError, match="is no Pipeline"):
        Registry({"os": "os:path"}).load("os")


def test_the_builtins_are_sound() -> None:
    for name in Registry.installed([]).targets:
        pipeline = Registry.installed([]).load(name)
        assert isinstance(pipeline, Pipeline)
        assert pipeline.name == name
        assert plan_of(pipeline).name == name


def test_parallel_edges_share_one_channel_so_they_share_a_connector() -> None:
    pipeline = Pipeline(
        name="twice",
        stages=(stage("a"), stage("b", needs("p"), needs("q"), emits="text")),
        edges=(Edge("a", "b.p", "text"), Edge("a", "b.q", "text")),
        tasks=(Task("t", {"text": "a"}, {"text": "b"}),),
    )
    with pytest.raises(PlanError, match="one ordered channel"):
        plan_of(pipeline, "edges.b.p.connector=tcp")
    plan = plan_of(pipeline, "edges.b.p.connector=tcp", "edges.b.q.connector=tcp", "stages.b.host=::1")
    assert {edge.connector for edge in plan.edges} == {"tcp"}
    hello = plan.hello("b", 0, 1)
    assert ({edge.connector for edge in hello.inputs}, hello.host) == ({"tcp"}, "::1")
    for host in ("localhost", "1.2.3", "7", "0.0.0.0", "::", "224.0.0.1"):
        with pytest.raises(PlanError, match="IP address"):
            plan_of(pipeline, f"stages.b.host={host}")

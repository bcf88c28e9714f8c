"""Parallel degrees in a deployment: which devices they take, and what is refused, by its setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.models.common.network import text_network
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.explain import as_builtins, as_text
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.planning.devices import environments_of
from omni_actors.pipelines.planning.parallel import check_strategy
from omni_actors.pipelines.strategy import VLLM, Network, Strategy, network_refusals
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import Device

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "hidden_size": 96,
}


def splittable(pipeline: Pipeline = ASSISTANT) -> Pipeline:
    """The same with an llm that can be split."""
    network = "omni_actors.models.causal_lm.pipeline:network"
    return replace(
        pipeline, stages=tuple(replace(s, network=network) if s.name == "llm" else s for s in pipeline.stages)
    )


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight devices that share nothing, in the place of this machine's processor."""

    def environment(self: CpuPlatform, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {"X_VISIBLE_DEVICES": device.removeprefix("x:")}

    monkeypatch.setattr(CpuPlatform, "shared", False)
    monkeypatch.setattr(CpuPlatform, "visibility", ("X_VISIBLE_DEVICES",))
    monkeypatch.setattr(CpuPlatform, "devices", lambda self: tuple(Device(f"x:{i}", None) for i in range(8)))
    monkeypatch.setattr(CpuPlatform, "worker_environment", environment)
    monkeypatch.setattr(CpuPlatform, "worker_device", lambda self, device: "x:0")
    monkeypatch.setattr(CpuPlatform, "cores", lambda self: 16)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "cores", lambda self: 4)


def hello_ranks(plan: Plan, replica: int) -> list[tuple[str, str]]:
    ranks = plan.hello("llm", replica, 1).ranks
    return [(rank.device, rank.environment["X_VISIBLE_DEVICES"]) for rank in ranks]


def test_replicas_take_disjoint_devices(accelerator: None) -> None:
    plan = plan_of(splittable(), "stages.llm.strategy.tensor=2", "stages.llm.replicas=3")
    llm = plan.stage("llm")
    assert [llm.layout_of(r).devices for r in range(3)] == [("x:0", "x:1"), ("x:2", "x:3"), ("x:4", "x:5")]
    assert hello_ranks(plan, 1) == [("x:0", "2"), ("x:0", "3")]
    assert plan.hello("llm", 1, 1).strategy == {"tensor": 2}
    assert plan.hello("llm", 1, 1).collectives == "gloo"
    assert plan.hello("acoustic", 0, 1).ranks == ()


def test_devices_are_the_overlays_where_it_names_them(accelerator: None) -> None:
    plan = plan_of(splittable(), "stages.llm.strategy.tensor=2", "stages.llm.devices=['x:6', 'x:3']")
    assert plan.stage("llm").layout_of(0).devices == ("x:6", "x:3")


def test_ranks_of_a_processor_share_its_cores(cores: None) -> None:
    plan = plan_of(splittable(), "stages.llm.strategy.tensor=4", "stages.llm.replicas=2")
    llm = plan.stage("llm")
    assert llm.layout_of(1).devices == ("cpu",) * 4
    assert llm.threads == 1
    assert llm.environment_of(0)["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in plan.stage("acoustic").environment_of(0)


def test_threads_are_shared_out_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "cores", lambda self: 32)
    alone, split = plan_of(splittable()), plan_of(splittable(), "stages.llm.strategy.tensor=2")
    assert split.stage("llm").threads <= alone.stage("llm").threads
    assert sum(s.threads * s.replicas * s.strategy.ranks for s in split.stages) <= 32


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stages.llm.strategy.tensor=8"], "--set stages.llm.strategy.tensor=8: 8 ranks need 8 cores"),
        (
            ["stages.llm.strategy.data=2"],
            "data parallel degree 2 is not supported by engine 'autoregressive'; set",
        ),
        (["stages.llm.strategy.pipeline=2"], "pipeline parallel degree 2 is not supported by engine"),
        (["stages.llm.strategy.cfg=2"], "cfg parallel degree 2 is not supported by engine"),
        (["stages.llm.strategy.sequence=2"], "sequence parallel degree 2 is not supported by engine"),
        (["stages.llm.strategy.expert=2"], "experts are shared out among all ranks of data and tensor, which are 1"),
        (["stages.acoustic.strategy.tensor=2"], "tensor parallel degree 2 is not supported by engine 'generation'"),
        (["stages.llm.strategy.tensor=2", "stages.llm.options.fused=false"], "leave options.fused at its default"),
    ],
)
def test_what_cannot_be_is_refused_by_its_setting(cores: None, overrides: list[str], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(splittable(), *overrides)
    assert message in str(caught.value)
    assert f"--set {overrides[0]}" in str(caught.value)


def test_a_family_that_does_not_split_says_so(cores: None) -> None:
    with pytest.raises(PlanError, match="tensor parallel degree 2 is not supported by this stage's family"):
        plan_of(ASSISTANT, "stages.llm.strategy.tensor=2")


def test_too_few_devices_are_refused(accelerator: None) -> None:
    with pytest.raises(PlanError, match=r"10 ranks \(2 for each of 5 replicas\) need a device each, and .* has 8"):
        plan_of(splittable(), "stages.llm.strategy.tensor=2", "stages.llm.replicas=5")
    with pytest.raises(PlanError, match="'x:1' is named twice"):
        plan_of(splittable(), "stages.llm.strategy.tensor=2", "stages.llm.devices=['x:1', 'x:1']")


def test_a_platform_without_collectives_has_one_rank(cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "collectives", "")
    with pytest.raises(PlanError, match="platform 'cpu' has no collectives"):
        plan_of(splittable(), "stages.llm.strategy.tensor=2")


@pytest.mark.parametrize(
    ("degrees", "changes", "message"),
    [
        ({"tensor": 2}, {}, None),
        ({"tensor": 8}, {}, "tensor parallel degree 8 does not divide the model's 12 attention heads"),
        ({"tensor": 3}, {"kv_heads": 2}, "3 neither divides the model's 2 key-value heads nor is a multiple of them"),
        ({"tensor": 4}, {"kv_heads": 2}, None),
        ({"tensor": 2}, {"inner": (97,)}, "tensor parallel degree 2 does not divide the model's intermediate size"),
        ({"tensor": 2, "expert": 2}, {}, "expert parallel degree 2: the model has no experts"),
        ({"tensor": 2, "expert": 2}, {"experts": 9}, "expert parallel degree 2 does not divide the model's 9 experts"),
        ({"tensor": 2, "expert": 2}, {"experts": 8, "expert_inner": 33}, None),
        ({"tensor": 2}, {"experts": 8, "expert_inner": 33}, "does not divide the model's intermediate size of 33"),
        ({"pipeline": 4}, {}, "pipeline parallel degree 4 exceeds the model's 3 layers"),
        ({"tensor": 2}, {"why_not": (("tensor", "it is knotted"),)}, "tensor parallel degree 2: it is knotted"),
    ],
)
def test_degrees_must_fit_the_network(degrees: dict[str, int], changes: dict[str, Any], message: str | None) -> None:
    network = replace(text_network(CONFIG), **changes)
    found = [reason for _, reason in network_refusals(Strategy(**degrees), network)]
    assert found == [] if message is None else message in found[0]


def test_a_networks_sizes_are_its_configs() -> None:
    assert text_network(CONFIG) == Network(3, 12, 4, (96,))
    mixture = CONFIG | {"num_experts": 8, "moe_intermediate_size": 32}
    assert text_network(mixture) == Network(3, 12, 4, (), 8, 32)


def test_explain_shows_the_layout(accelerator: None) -> None:
    plan = plan_of(splittable(), "stages.llm.strategy.tensor=2", "stages.llm.replicas=2")
    values = as_builtins(plan)["values"]
    assert values["stages.llm.layout"]["value"] == {
        "llm#0 rank 0": "x:0, tensor 0",
        "llm#0 rank 1": "x:1, tensor 1",
        "llm#1 rank 0": "x:2, tensor 0",
        "llm#1 rank 1": "x:3, tensor 1",
    }
    assert "stages.acoustic.layout" not in values
    assert as_text(plan) is not None


def planned(folder: Path, *overrides: str, **config: Any) -> Plan:
    """Of a language model's folder that has no more than a config."""
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return resolve(str(folder), platform="cpu", overrides=overrides)


def test_the_numbers_are_read_from_the_folder(cores: None, tmp_path: Path) -> None:
    assert planned(tmp_path, "stages.llm.strategy.tensor=2").hello("llm", 0, 1).strategy == {"tensor": 2}
    with pytest.raises(PlanError, match="does not divide the model's 9 attention heads") as caught:
        planned(tmp_path, "stages.llm.strategy.tensor=2", num_attention_heads=9, num_key_value_heads=3)
    assert "--set stages.llm.strategy.tensor=2: stage 'llm'" in str(caught.value)
    with pytest.raises(PlanError, match="a model of type 'phi3' runs by transformers' own layers, on one device"):
        planned(tmp_path, "stages.llm.strategy.tensor=2", model_type="phi3")
    with pytest.raises(PlanError, match="does not state its sizes: TypeError"):
        planned(tmp_path, "stages.llm.strategy.tensor=2", num_hidden_layers=None)


def test_a_split_stage_is_not_spread(cores: None, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="does not work together with a prefill pool"):
        planned(tmp_path, "stages.llm.strategy.tensor=2", "stages.llm.prefill.replicas=1")


def test_vllm_is_told_degrees_and_starts_its_ranks_itself(cores: None, tmp_path: Path) -> None:
    """What this project's own code cannot split is nothing to it; the model's numbers are."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": "phi3"}))
    (llm,) = (stage for stage in splittable().stages if stage.name == "llm")

    def check(**degrees: int) -> None:
        strategy = Strategy(**degrees)
        check_strategy("stages.llm", llm, VLLM, strategy, str(tmp_path), CpuPlatform(), {}, lambda path: path)

    check(tensor=2, pipeline=2)
    with pytest.raises(PlanError, match="does not divide the model's 12 attention heads"):
        check(tensor=8)
    with pytest.raises(PlanError, match="pipeline parallel degree 4 exceeds"):
        check(pipeline=4)
    with pytest.raises(PlanError, match="data parallel degree 2 is not supported by engine 'vllm'; set replicas"):
        check(data=2)


def test_the_first_process_of_an_engine_with_ranks_of_its_own_sees_all_devices() -> None:
    def make(device: str) -> dict[str, str]:
        return {"VISIBLE": device.removeprefix("x:"), "OMP_NUM_THREADS": "1"}

    devices = tuple(f"x:{i}" for i in range(4))
    found = environments_of(devices, 2, ("VISIBLE", "ELSEWHERE"), make)
    assert [it["VISIBLE"] for it in found] == ["0,1", "1", "2,3", "3"]
    assert [it["VISIBLE"] for it in environments_of(devices, 2, (), make)] == ["0", "1", "2", "3"]

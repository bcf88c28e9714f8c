"""LoRA adapters of a running deployment: every replica has them, also one that starts later, or none has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.models.diffusion.pipeline import apart, image_pipeline
from omni_actors.orchestrator.adapters import LoadedAdapters
from omni_actors.pipelines.plan import StagePlan
from omni_actors.protocol.errors import OmniError, invalid_request, stage_died
from omni_actors.protocol.states import ReplicaState
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

PIPELINE = image_pipeline("painter", "adapter:P", architectures=(), doc="Paints.")


@dataclass
class Worker:
    """A replica's worker: the adapters that it has, and the errors that it answers with."""

    stage: StagePlan
    state: ReplicaState = ReplicaState.READY
    loaded: dict[str, str] = field(default_factory=dict)
    refuses: OmniError | None = None

    async def query(self, what: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        if self.refuses is not None and what == "load_lora":
            raise self.refuses
        self.notify(what, args)

    def notify(self, what: str, args: dict[str, Any]) -> None:
        if what == "load_lora":
            assert args["name"] not in self.loaded
            self.loaded[args["name"]] = args["path"]
        else:
            self.loaded.pop(args["name"], None)


def workers(count: int = 2, pipeline: Any = PIPELINE) -> tuple[LoadedAdapters, list[Worker]]:
    """A deployment with workers of every stage; the workers of the first stage."""
    plan = plan_of(pipeline)
    made = {stage.name: [Worker(stage) for _ in range(count)] for stage in plan.stages}
    pools = {
        stage.name: StagePool(replace(stage, replicas=1), tuple(cast(list[StageReplica], made[stage.name])))
        for stage in plan.stages
    }
    return LoadedAdapters(pools), made[plan.stages[0].name]


async def test_every_worker_loads_and_unloads() -> None:
    adapters, found = workers()
    await adapters.load("pen", "/loras/pen")
    assert [it.loaded for it in found] == [{"pen": "/loras/pen"}] * 2
    assert list(adapters.names) == ["pen"]
    await adapters.unload("pen")
    assert [it.loaded for it in found] == [{}, {}]
    assert list(adapters.names) == []


async def test_a_worker_that_starts_later_gets_what_is_loaded() -> None:
    adapters, (first, second) = workers()
    second.state = ReplicaState.STARTING
    await adapters.load("pen", "/loras/pen")
    assert second.loaded == {}
    adapters.restore(cast(StageReplica, second))
    assert second.loaded == first.loaded == {"pen": "/loras/pen"}


async def test_what_one_worker_refuses_no_worker_has() -> None:
    adapters, (first, second) = workers()
    second.refuses = invalid_request("It does not fit.", "path")
    with pytest.raises(OmniError) as refused:
        await adapters.load("pen", "/loras/pen")
    assert refused.value.info.message == "It does not fit."
    assert (first.loaded, second.loaded, adapters.names) == ({}, {}, ())


async def test_a_replacement_that_is_refused_leaves_the_one_before() -> None:
    adapters, found = workers()
    await adapters.load("pen", "/loras/pen")
    with pytest.raises(OmniError):
        await adapters.load("pen", "/loras/other")
    found[1].refuses = invalid_request("It does not fit.", "path")
    with pytest.raises(OmniError):
        await adapters.load("pen", "/loras/other", replace=True)
    assert [it.loaded for it in found] == [{"pen": "/loras/pen"}] * 2
    found[1].refuses = None
    await adapters.load("pen", "/loras/other", replace=True)
    assert [it.loaded for it in found] == [{"pen": "/loras/other"}] * 2


async def test_a_worker_that_dies_meanwhile_is_no_refusal() -> None:
    adapters, (first, second) = workers()
    second.refuses = stage_died("image")
    await adapters.load("pen", "/loras/pen")
    assert first.loaded == {"pen": "/loras/pen"}
    assert adapters.names == ("pen",)


async def test_without_a_live_worker_nothing_is_loaded() -> None:
    adapters, found = workers()
    for it in found:
        it.state = ReplicaState.DEAD
    with pytest.raises(OmniError) as refused:
        await adapters.load("pen", "/loras/pen")
    assert refused.value.info.status == 503
    assert adapters.names == ()


async def test_an_unknown_adapter_and_a_model_without_adapters_are_refused() -> None:
    adapters, _ = workers()
    with pytest.raises(OmniError) as refused:
        await adapters.unload("pen")
    assert refused.value.info.status == 404
    writers, _ = workers(pipeline=ASSISTANT)
    with pytest.raises(OmniError) as refused:
        await writers.load("pen", "/loras/pen")
    assert refused.value.info.param == "lora_name"


async def test_of_three_stages_only_the_one_that_denoises_has_adapters() -> None:
    adapters, (first, _) = workers(pipeline=apart(PIPELINE))
    await adapters.load("pen", "/loras/pen")
    assert first.stage.name == "encoder"
    assert first.loaded == {}

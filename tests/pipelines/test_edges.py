"""By which connector payloads travel, and what explain says of it. cuda can be planned for without a device."""

from __future__ import annotations

from typing import Any

import pytest
from tests.pipelines.builders import plan_of, stage

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Task
from omni_actors.pipelines.explain import facts
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan, PlanError

CPU_ENCODER = "stages.encoder.platform=cpu"
CONNECTOR = "edges.listener.features.connector"


def plan(*overrides: str, platform: str = "cuda", pipeline: str = "qwen3-asr") -> Plan:
    return resolve(pipeline, platform=platform, overrides=overrides)


def connector_of(it: Plan, path: str = CONNECTOR) -> tuple[Any, str, str]:
    """The value, whose word it is, and what explain says of it."""
    (fact,) = [fact for fact in facts(it) if fact.path == path]
    return fact.value, str(fact.origin), fact.doc


def test_between_two_stages_of_one_platform_payloads_stay_on_the_device() -> None:
    value, origin, doc = connector_of(plan())
    assert (value, origin) == ("device", "platform cuda, by cuda_ipc")
    assert (
        doc
        == "Tensors stay on the device (cuda_ipc); if the other end cannot open them, they go through shared memory."
    )


def test_between_two_platforms_they_go_through_the_host() -> None:
    value, origin, doc = connector_of(plan(CPU_ENCODER))
    assert (value, origin) == ("shared_memory", "declaration")
    assert doc == "What a device computes is copied through the host: one to the other's."


def test_on_the_processor_nothing_is_copied_for_it() -> None:
    assert connector_of(plan(platform="cpu")) == ("shared_memory", "declaration", "")


def test_an_operators_word_stands() -> None:
    said = f"{CONNECTOR}=shared_memory"
    value, origin, doc = connector_of(plan(said))
    assert (value, origin) == ("shared_memory", f"command line --set {said}")
    assert doc == "What a device computes is copied through the host: one from its device and one to the other's."
    assert connector_of(plan(f"{CONNECTOR}=tcp"))[0] == "tcp"


def test_an_operators_word_about_one_of_two_parallel_edges_is_for_both() -> None:
    """They share a channel: the other one would stay on the device for nobody's sake."""
    ports = (Port("states", "hidden", mode="chunk"), Port("codes", "codes", mode="chunk"))
    two = Pipeline(
        name="two",
        stages=(stage("first", emits="text"), stage("second", *ports, emits="text")),
        edges=tuple(Edge("first", f"second.{port.name}", port.kind, mode="chunk") for port in ports),
        tasks=(Task("chat", {"text": "first"}, {"text": "second"}),),
    )
    assert {edge.connector for edge in plan_of(two, platform="cuda").edges} == {"device"}
    it = plan_of(two, "edges.second.codes.connector=shared_memory", platform="cuda")
    assert {edge.connector for edge in it.edges} == {"shared_memory"}


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
def test_a_device_that_both_cannot_open_is_refused(platform: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(f"{CONNECTOR}=device", CPU_ENCODER, platform=platform)
    message = caught.value.info.message
    assert message.startswith(f"command line --set {CONNECTOR}=device: stages 'encoder' (platform 'cpu')")
    assert message.endswith("have no device memory that both can open; use shared_memory")


def test_what_only_text_goes_by_is_left_as_it_is() -> None:
    assert {edge.connector for edge in plan(pipeline="stub").edges} == {"shared_memory"}
    by_ends = {(edge.source, edge.target): edge.connector for edge in plan(pipeline="omni-demo").edges}
    assert by_ends["asr", "llm"] == "shared_memory"
    assert by_ends["acoustic", "vocoder"] == "device"
    assert by_ends["media", "asr"] == "shared_memory"  # decoded on the processor

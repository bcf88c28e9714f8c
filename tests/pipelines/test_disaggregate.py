"""Prefill and decode apart: what a deploy file says of a stage's prompts makes two pools of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.explain import as_builtins, as_text, facts
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.subgraph import restricted, subgraph
from omni_actors.pipelines.validate import check_declaration

SEPARABLE = replace(
    ASSISTANT, stages=tuple(replace(s, separable=True) if s.name == "llm" else s for s in ASSISTANT.stages)
)


def split_plan(*overrides: str) -> Plan:
    return plan_of(SEPARABLE, "stages.llm.prefill.replicas=2", *overrides)


def ways(plan: Plan) -> set[str]:
    return {f"{e.source} > {e.target}.{e.port} ({e.kind}, {e.mode}, {e.capacity})" for e in plan.edges}


def test_nothing_is_split_that_nobody_asks_for() -> None:
    plan = plan_of(SEPARABLE)
    assert [stage.name for stage in plan.stages] == ["asr", "llm", "acoustic", "vocoder", "media"]
    assert "role" not in plan.stage("llm").options


def test_the_first_half_takes_over_what_comes_in_and_the_second_keeps_what_goes_out() -> None:
    plan = split_plan()
    assert [stage.name for stage in plan.stages] == ["asr", "llm-prefill", "llm", "acoustic", "vocoder", "media"]
    assert [stage.index for stage in plan.stages] == list(range(6))
    assert ways(plan) == {
        "asr > llm-prefill.text (text, full, 64)",
        "llm-prefill > llm.kv (kv, chunk, 1)",
        "llm > acoustic.text (text, chunk, 64)",
        "acoustic > vocoder.frames (mel, chunk, 4)",
        "media > asr.audio (pcm, full, 8)",
    }
    assert plan.tasks["chat"].entries == {"text": "llm-prefill", "audio": "asr.audio"}
    assert plan.tasks["chat"].outputs == {"text": "llm", "audio": "vocoder"}
    first, second = plan.stage("llm-prefill"), plan.stage("llm")
    assert (first.options["role"], second.options["role"]) == ("prefill", "decode")
    assert (first.engine, first.adapter, first.model) == (second.engine, second.adapter, second.model)
    assert (first.replicas, second.replicas) == (2, 1)
    assert plan.hello("llm", 0, 1).inputs[0].source == "llm-prefill"


def test_a_request_takes_both_halves_consumers_last() -> None:
    plan = split_plan()
    graph = subgraph(plan, "chat", ("text",), ("text",))
    assert [part.stage.name for part in graph.parts] == ["llm-prefill", "llm"]
    first, second = graph.parts
    assert (first.visible, second.visible) == (False, True)
    assert (first.ports, second.ports) == ((), ("kv",))
    assert first.sections == second.sections == ("prompt", "sampling")
    spoken = subgraph(plan, "chat", ("audio",), ("text", "audio"))
    assert [part.stage.name for part in spoken.parts][1:] == ["asr", "llm-prefill", "llm", "acoustic", "vocoder"]
    assert [s.name for s in restricted(plan, graph).stages] == ["llm-prefill", "llm"]


def test_the_first_half_is_as_the_stage_but_for_what_is_said_of_it() -> None:
    plan = split_plan(
        "stages.llm.dtype=bfloat16",
        "stages.llm.replicas=3",
        "stages.llm.threads=2",
        "stages.llm.options.block_size=8",
        "stages.llm.options.step_tokens=99",
        "stages.llm.prefill.options.step_tokens=1024",
        "stages.llm.environment={A: 1}",
        "stages.llm.limits.max_requests=5",
        "stages.llm.sampling.temperature=0.5",
    )
    first, second = plan.stage("llm-prefill"), plan.stage("llm")
    assert (first.dtype, first.options["block_size"], first.options["step_tokens"]) == ("bfloat16", 8, 1024)
    assert (second.dtype, second.options["block_size"], second.options["step_tokens"]) == ("bfloat16", 8, 99)
    assert (first.replicas, second.replicas) == (2, 3)
    assert second.threads == 2
    assert plan.provenance["stages.llm.prefill.threads"].kind == "platform"
    assert first.environment_of(0)["A"] == "1"
    assert first.limits["max_requests"] == 5
    assert "sampling" not in first.options
    assert second.options["sampling"] == {"temperature": 0.5}
    assert str(plan.provenance["stages.llm.prefill.options.block_size"]).endswith("stages.llm.options.block_size=8")


def test_the_devices_of_the_first_half_replace_the_stages() -> None:
    plan = split_plan("stages.llm.devices=[cpu, cpu]", "stages.llm.prefill.device=cpu")
    assert plan.stage("llm-prefill").devices == ("cpu",)
    assert plan.stage("llm").devices == ("cpu", "cpu")
    assert split_plan("stages.llm.devices=[cpu, cpu]").stage("llm-prefill").devices == ("cpu", "cpu")


def test_the_ports_of_a_split_stage_are_still_called_its_own() -> None:
    plan = split_plan("edges.llm.text.capacity=7")
    assert "asr > llm-prefill.text (text, full, 7)" in ways(plan)


def test_the_way_between_the_halves_can_be_chosen() -> None:
    plan = split_plan("edges.llm.kv.connector=tcp")
    assert [edge.connector for edge in plan.edges if edge.kind == "kv"] == ["tcp"]


def test_explain_shows_both_pools() -> None:
    plan = split_plan("stages.llm.replicas=3")
    shown = {fact.path: fact for fact in facts(plan)}
    assert shown["stages.llm.prefill.replicas"].value == 2
    assert shown["stages.llm.replicas"].value == 3
    assert shown["stages.llm.prefill.options.role"].value == "prefill"
    assert shown["edges.llm.kv.source"].value == "llm-prefill"
    assert len(shown) == len(facts(plan))
    assert plan.provenance.keys() <= shown.keys()
    assert {"from": "llm-prefill", "to": "llm.kv", "kind": "kv"} in as_builtins(plan)["edges"]
    assert as_text(plan)


@pytest.mark.parametrize(
    ("pipeline", "override", "says"),
    [
        (ASSISTANT, "stages.llm.prefill.replicas=1", "unknown key 'prefill'"),
        (SEPARABLE, "stages.acoustic.prefill.replicas=1", "unknown key 'prefill'"),
        (SEPARABLE, "stages.llm.prefill.engine=vllm", "unknown key 'engine'"),
        (SEPARABLE, "stages.llm.prefill.sampling.top_p=0.5", "unknown key 'sampling'"),
        (SEPARABLE, "stages.llm.prefill.options.role=decode", "unknown key 'role'"),
        (SEPARABLE, "edges.llm.kv.capacity=2", "unknown key 'capacity'"),
        (SEPARABLE, "edges.llm.kv.connector=tcp", "has no prefill pool; stages.llm.prefill.replicas=1 gives it one"),
        (ASSISTANT, "edges.llm.kv.connector=tcp", "unknown key 'kv'"),
    ],
)
def test_what_cannot_be_said_is_refused(pipeline: Pipeline, override: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan_of(pipeline, override)


def test_another_engine_has_no_halves() -> None:
    with pytest.raises(
        PlanError, match=r"stage 'llm' is split into prefill and decode, which engine 'package:Engine' does not support"
    ):
        split_plan("stages.llm.engine=package:Engine")


def test_only_an_autoregressive_stage_is_separable() -> None:
    broken = replace(ASSISTANT, stages=tuple(replace(s, separable=True) for s in ASSISTANT.stages))
    with pytest.raises(PlanError, match="stage 'acoustic': only an autoregressive stage is separable"):
        check_declaration(broken)

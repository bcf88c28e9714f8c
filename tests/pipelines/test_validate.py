"""A declaration with a fault is refused, and the message names the fault."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.pipelines.builders import ASSISTANT, may, needs, plan_of, stage

from omni_actors.pipelines.declaration import Edge, Pipeline, Stage, Task
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.validate import check_declaration
from omni_actors.protocol.options import Option

BASE = Pipeline(
    "base",
    (stage("a"), stage("b", may(), may("other"), emits="text")),
    (Edge("a", "b.text", "text"),),
    (Task("t", {"text": "a"}, {"text": "b"}),),
)


def test_sound_declarations_pass() -> None:
    check_declaration(BASE)
    check_declaration(ASSISTANT)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (replace(BASE, stages=(*BASE.stages, stage("a"))), "two stages are called 'a'"),
        (replace(BASE, tasks=BASE.tasks * 2), "two tasks are called 't'"),
        (replace(BASE, tasks=()), "it has no task"),
        (replace(BASE, stages=(), edges=(), tasks=BASE.tasks), "it has no stage"),
        (replace(BASE, stages=(*BASE.stages, stage("media"))), "must not be called 'media'"),
        (replace(BASE, stages=(*BASE.stages, stage("c d"))), "'c d' is not an identifier"),
        (replace(BASE, stages=(*BASE.stages, stage("c", may(), may()))), "two ports are called 'text'"),
        (replace(BASE, edges=(Edge("aa", "b.text", "text"),)), "there is no stage 'aa'"),
        (replace(BASE, edges=(Edge("a", "b.texts", "text"),)), "no port 'texts'; did you mean 'text'?"),
        (replace(BASE, edges=(Edge("a", "c.text", "text"),)), "there is no stage 'c'"),
        (replace(BASE, edges=(Edge("a", "b.text", "mel"),)), "carries 'mel', the port takes 'text'"),
        (replace(BASE, edges=(Edge("a", "b.text", "text", capacity=0),)), "capacity must be at least 1"),
        (replace(BASE, edges=(Edge("a", "b.text", "text", mode="chunk"),)), "the port takes whole inputs only"),
        (replace(BASE, edges=BASE.edges * 2), "two edges lead into 'b.text'"),
        (replace(BASE, edges=(*BASE.edges, Edge("b", "b.other", "text"))), "form a cycle: b → b"),
        (replace(BASE, tasks=(Task("t", {"text": "z"}, {"text": "b"}),)), "there is no stage 'z'"),
        (replace(BASE, tasks=(Task("t", {"audio": "a"}, {"text": "b"}),)), "name a port of 'a' as 'a.PORT'"),
        (
            replace(BASE, tasks=(Task("t", {"audio": "b.text"}, {"text": "b"}),)),
            "decoded audio is of kind 'pcm' or",
        ),
        (replace(BASE, tasks=(Task("t", {"image": "b.text"}, {"text": "b"}),)), "decoded image is of kind 'media'"),
        (
            replace(
                BASE,
                stages=(stage("a", may("m", "media"), may("n", "media"), emits="text"),),
                edges=(),
                tasks=(Task("t", {"image": "a.m", "audio": "a.n"}, {"text": "a"}),),
            ),
            "delivered together, to one port; not to 'a.m', 'a.n'",
        ),
        (replace(BASE, tasks=(Task("t", {"text": "a"}, {"text": "a"}),)), "stage 'a' emits nothing"),
        (replace(BASE, tasks=(Task("t", {"text": "a"}, {"audio": "b"}),)), "stage 'b' emits text"),
    ],
)
def test_each_fault_is_named(fault: Pipeline, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_declaration(fault)
    assert message in str(caught.value)
    assert "pipeline 'base'" in str(caught.value)


def test_a_longer_cycle_is_spelled_out_in_the_direction_of_its_edges() -> None:
    pipeline = Pipeline(
        "ring",
        (stage("a", may()), stage("b", may()), stage("c", may(), emits="text")),
        (Edge("a", "b.text", "text"), Edge("b", "c.text", "text"), Edge("c", "a.text", "text")),
        (Task("t", {"text": "a"}, {"text": "c"}),),
    )
    with pytest.raises(PlanError) as caught:
        check_declaration(pipeline)
    cycle = str(caught.value).rsplit("cycle: ", 1)[1].split(" → ")
    assert all((x, y) in {("a", "b"), ("b", "c"), ("c", "a")} for x, y in pairwise(cycle))


def test_a_bridge_may_change_the_kind() -> None:
    check_declaration(replace(BASE, edges=(Edge("a", "b.text", "mel", bridge="bridges:MelToText"),)))


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        check_declaration(replace(BASE, edges=(Edge("x", "y.z", "text"),), tasks=()))
    assert len(str(caught.value).splitlines()) == 3


def test_an_output_that_nothing_reaches_is_a_fault() -> None:
    pipeline = Pipeline(
        "lonely",
        (stage("a", emits="text"), stage("b", needs(), emits="audio")),
        tasks=(Task("t", {"text": "a"}, {"text": "a", "audio": "b"}),),
    )
    with pytest.raises(PlanError, match="output 'audio' cannot be reached"):
        plan_of(pipeline)


def test_an_input_that_leads_nowhere_is_a_fault() -> None:
    pipeline = Pipeline(
        "deaf",
        (stage("a", emits="text"), stage("b")),
        tasks=(Task("t", {"text": "a", "hint": "b"}, {"text": "a"}),),
    )
    with pytest.raises(PlanError, match="input 'hint' leads to no output"):
        plan_of(pipeline)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": {"speed": Option(None)}}, "option 'speed' is None by default; its type must be given"),
        ({"options": {"speed": 1}}, "option 'speed' is int, not an Option"),
        ({"options": {"mood": Option("sad", choices=("calm", "glad"))}}, "option 'mood' is 'sad' by default, none of"),
        ({"input_limits": {"text": "speed"}}, "input_limits name 'speed', which is none of the stage's options"),
        (
            {"options": {"speed": Option(1), "pace": Option(2, aliases=("speed",))}},
            "two options are called 'speed'",
        ),
    ],
)
def test_options_are_declared_whole(fields: dict[str, Any], message: str) -> None:
    odd = Stage("a", "pkg:E", "", emits="text", **fields)
    with pytest.raises(PlanError, match=message):
        check_declaration(replace(BASE, stages=(odd, BASE.stages[1])))

"""A request takes the part of the graph that its inputs and outputs need, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.builders import ASSISTANT, may, needs, plan_of, stage

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.pipelines.plan import MEDIA_STAGE
from omni_actors.pipelines.subgraph import Subgraph, restricted, subgraph
from omni_actors.protocol.errors import OmniError


def names(found: Subgraph) -> list[str]:
    return [part.stage.name for part in found.parts]


def links(found: Subgraph) -> set[tuple[str, str]]:
    return {(edge.source, f"{edge.target}.{edge.port}") for edge in found.edges}


def refused(task: str, inputs: tuple[str, ...], outputs: tuple[str, ...], pipeline: Pipeline = ASSISTANT) -> OmniError:
    with pytest.raises(OmniError) as caught:
        subgraph(plan_of(pipeline), task, inputs, outputs)
    assert caught.value.info.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("task", "inputs", "outputs", "stages", "finals"),
    [
        ("chat", ("text",), ("text",), ["llm"], ["llm"]),
        ("chat", ("text",), ("audio",), ["llm", "acoustic", "vocoder"], ["vocoder"]),
        ("chat", ("text",), ("text", "audio"), ["llm", "acoustic", "vocoder"], ["llm", "vocoder"]),
        ("chat", ("audio",), ("text",), ["media", "asr", "llm"], ["llm"]),
        ("chat", ("text", "audio"), ("text",), ["media", "asr", "llm"], ["llm"]),
        ("transcription", ("audio",), ("text",), ["media", "asr"], ["asr"]),
        ("speech", ("text",), ("audio",), ["acoustic", "vocoder"], ["vocoder"]),
    ],
)
def test_only_what_the_modalities_need_is_active(
    task: str, inputs: tuple[str, ...], outputs: tuple[str, ...], stages: list[str], finals: list[str]
) -> None:
    found = subgraph(plan_of(ASSISTANT), task, inputs, outputs)
    assert names(found) == stages
    assert [s.name for s in found.finals] == finals
    assert [part.stage.name for part in found.parts if part.visible] == finals


def test_ports_are_open_only_where_something_will_arrive() -> None:
    plan = plan_of(ASSISTANT)
    spoken = {p.stage.name: p for p in subgraph(plan, "chat", ("audio",), ("audio",)).parts}
    typed = {p.stage.name: p for p in subgraph(plan, "chat", ("text",), ("audio",)).parts}
    assert (spoken["media"].ports, spoken["asr"].ports, spoken["llm"].ports) == ((), ("audio",), ("text",))
    assert (typed["llm"].ports, typed["acoustic"].ports, typed["vocoder"].ports) == ((), ("text",), ("frames",))
    assert spoken["llm"].sections == ("prompt", "sampling")
    assert spoken["media"].sections == ("clips",)


def test_audio_input_enters_by_the_edge_of_its_own_task() -> None:
    pipeline = Pipeline(
        "cloner",
        (stage("asr", needs("audio", "pcm"), emits="text"), stage("voice", may("reference", "pcm"), emits="audio")),
        tasks=(
            Task("transcription", {"audio": "asr.audio"}, {"text": "asr"}),
            Task("speech", {"text": "voice", "audio": "voice.reference"}, {"audio": "voice"}),
        ),
    )
    plan = plan_of(pipeline)
    assert links(subgraph(plan, "transcription", ("audio",), ("text",))) == {("media", "asr.audio")}
    assert links(subgraph(plan, "speech", ("text", "audio"), ("audio",))) == {("media", "voice.reference")}
    assert links(subgraph(plan, "speech", ("text",), ("audio",))) == set()


def test_fan_in_and_skips_keep_every_edge_between_active_stages() -> None:
    pipeline = Pipeline(
        "diamond",
        (
            stage("a"),
            stage("b", needs()),
            stage("c", needs(), may("skip"), may("again")),
            stage("d", needs(), emits="text"),
        ),
        (
            Edge("a", "b.text", "text"),
            Edge("b", "c.text", "text"),
            Edge("a", "c.skip", "text"),
            Edge("a", "c.again", "text"),
            Edge("c", "d.text", "text"),
        ),
        (Task("t", {"text": "a"}, {"text": "d"}),),
    )
    found = subgraph(plan_of(pipeline), "t", ("text",), ("text",))
    assert names(found) == ["a", "b", "c", "d"]
    assert len(found.edges) == 5
    assert {e.port for e in found.parts[2].inputs} == {"text", "skip", "again"}
    assert len(found.parts[0].outputs) == 3


def test_an_entry_port_is_open_without_an_edge() -> None:
    pipeline = Pipeline(
        "streaming", (stage("a", needs(), emits="text"),), tasks=(Task("t", {"text": "a.text"}, {"text": "a"}),)
    )
    found = subgraph(plan_of(pipeline), "t", ("text",), ("text",))
    assert found.parts[0].ports == ("text",)
    assert (found.entries["text"].stage.name, found.entries["text"].port) == ("a", "text")


def test_what_the_plan_cannot_do_is_refused_with_the_field() -> None:
    assert refused("dance", ("text",), ("text",)).info.param == "task"
    assert refused("chat", ("text",), ("video",)).info.param == "modalities"
    assert refused("chat", ("text",), ()).info.param == "modalities"
    assert refused("chat", ("text",), ("text", "text")).info.param == "modalities"
    assert refused("chat", ("image",), ("text",)).info.param == "input"


def test_an_input_that_would_be_ignored_is_refused() -> None:
    pipeline = Pipeline(
        "two",
        (stage("a", emits="text"), stage("b", emits="audio")),
        tasks=(Task("t", {"text": "a", "hint": "b"}, {"text": "a", "audio": "b"}),),
    )
    error = refused("t", ("text", "hint"), ("text",), pipeline)
    assert error.info.param == "input"
    assert "hint" in error.info.message
    assert refused("t", ("text",), ("audio",), pipeline).info.param == "modalities"


def test_a_required_port_without_source_is_refused() -> None:
    pipeline = Pipeline(
        "video",
        (stage("sound"), stage("sight"), stage("mix", needs("sound"), needs("sight"), emits="text")),
        (Edge("sound", "mix.sound", "text"), Edge("sight", "mix.sight", "text")),
        (Task("t", {"a": "sound", "b": "sight"}, {"text": "mix"}),),
    )
    assert "mix.sight" in refused("t", ("a",), ("text",), pipeline).info.message
    assert names(subgraph(plan_of(pipeline), "t", ("a", "b"), ("text",))) == ["sound", "sight", "mix"]


def test_two_sources_for_one_port_are_refused() -> None:
    pipeline = Pipeline(
        "joined",
        (stage("asr"), stage("llm", may(), emits="text")),
        (Edge("asr", "llm.text", "text"),),
        (Task("t", {"text": "llm.text", "speech": "asr"}, {"text": "llm"}),),
    )
    assert "llm.text" in refused("t", ("text", "speech"), ("text",), pipeline).info.message


@pytest.mark.parametrize(
    ("task", "inputs", "outputs", "stages"),
    [
        ("chat", ("text",), ("text",), ["llm"]),
        ("speech", ("text",), ("audio",), ["acoustic", "vocoder", "media"]),
        ("transcription", ("audio",), ("text",), ["asr", "media"]),
        ("chat", ("audio",), ("text", "audio"), ["asr", "llm", "acoustic", "vocoder", "media"]),
    ],
)
def test_a_restricted_plan_answers_the_same_request_with_fewer_stages(
    task: str, inputs: tuple[str, ...], outputs: tuple[str, ...], stages: list[str]
) -> None:
    plan = plan_of(ASSISTANT)
    whole = subgraph(plan, task, inputs, outputs)
    small = restricted(plan, whole)
    assert [s.name for s in small.stages] == stages
    assert [s.index for s in small.stages] == list(range(len(stages)))
    assert [e.index for e in small.edges] == list(range(len(small.edges)))
    again = subgraph(small, task, inputs, outputs)
    assert (names(again), links(again)) == (names(whole), links(whole))
    for name in names(again):
        assert len(small.hello(name, 0, 1).inputs) == sum(e.target == name for e in whole.edges)


def test_a_plan_keeps_valid_combinations_only() -> None:
    plan = replace(plan_of(ASSISTANT))
    first = subgraph(plan, "chat", ("text",), ("text",))
    assert subgraph(plan, "chat", ("text",), ("text",)) is first
    with pytest.raises(OmniError):
        subgraph(plan, "chat", ("text",), ("smell",))
    assert list(plan.subgraphs.values()) == [first]


@st.composite
def graphs(draw: st.DrawFn) -> Pipeline:
    """Random DAGs: stage i may feed any later one, through a port of its own; all ports are optional."""
    count = draw(st.integers(1, 7))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    order = draw(st.permutations(range(count)))
    stages = [
        Stage(
            f"s{j}",
            "pkg:Engine",
            "",
            tuple(Port(f"p{i}", "text", required=False) for i, k in chosen if k == j),
            emits=f"o{j}",
        )
        for j in range(count)
    ]
    return Pipeline(
        "random",
        tuple(stages[j] for j in order),
        tuple(Edge(f"s{i}", f"s{j}.p{i}", "text") for i, j in chosen),
        (Task("all", {f"i{j}": f"s{j}" for j in range(count)}, {f"o{j}": f"s{j}" for j in range(count)}),),
    )


@settings(deadline=None)
@given(graphs(), st.data())
def test_random_graphs_keep_the_invariants(pipeline: Pipeline, data: st.DataObject) -> None:
    plan = plan_of(pipeline)
    task = plan.tasks["all"]
    inputs = tuple(data.draw(st.lists(st.sampled_from(list(task.entries)), min_size=1, unique=True)))
    outputs = tuple(data.draw(st.lists(st.sampled_from(list(task.outputs)), min_size=1, unique=True)))
    entries = {task.entries[m] for m in inputs}
    finals = {task.outputs[m] for m in outputs}
    try:
        found = subgraph(plan, "all", inputs, outputs)
    except OmniError:
        reached = _paths(plan.edges, entries)
        useful = {entry for entry in entries if _paths(plan.edges, {entry}) & finals}
        assert not finals <= reached or useful != entries
        return
    active = names(found)
    place = {name: index for index, name in enumerate(active)}
    assert MEDIA_STAGE not in active
    assert len(place) == len(active)
    assert finals | entries <= set(active)
    # Order and wiring: consumers after producers, exactly the edges between active stages.
    assert all(place[e.source] < place[e.target] for e in found.edges)
    assert set(found.edges) == {e for e in plan.edges if e.source in place and e.target in place}
    for part in found.parts:
        name = part.stage.name
        # Nothing idle: each stage is on a path from an entry to a final stage.
        assert name in _paths(plan.edges, entries)
        assert _paths(plan.edges, {name}) & finals
        assert {e.port for e in part.inputs} == set(part.ports)
        assert part.visible == (name in finals)


def _paths(edges: object, start: set[str]) -> set[str]:
    """What can be reached, the slow and obvious way."""
    found = set(start)
    while True:
        more = {e.target for e in edges if e.source in found} - found  # type: ignore[attr-defined]
        if not more:
            return found
        found |= more

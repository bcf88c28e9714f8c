"""Which replicas an attempt gets while links between them are broken: over random link tables, without workers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.builders import may, needs, plan_of, stage

from omni_actors.orchestrator.orchestrator import Orchestrator
from omni_actors.pipelines.declaration import Edge, Pipeline, Task
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import Request
from omni_actors.protocol.states import ReplicaState
from omni_actors.stages.replica import StageReplica

CHAIN = Pipeline(
    "chain",
    stages=(stage("a"), stage("b", needs("x", "t")), stage("c", needs("x", "t"), emits="text")),
    edges=(Edge("a", "b.x", "t"), Edge("b", "c.x", "t")),
    tasks=(Task("echo", {"text": "a"}, {"text": "c"}),),
)
RING = Pipeline(
    "ring",
    stages=(
        stage("a"),
        stage("b", needs("x", "t")),
        stage("c", needs("x", "t")),
        stage("d", needs("x", "t"), may("y", "t"), emits="text"),
    ),
    edges=(Edge("a", "b.x", "t"), Edge("a", "c.x", "t"), Edge("b", "d.x", "t"), Edge("c", "d.y", "t")),
    tasks=(Task("echo", {"text": "a"}, {"text": "d"}),),
)
"""Where a choice may have to be taken back: what is left to each neighbour of d need not be left to both."""

Place = tuple[str, int]
Link = tuple[Place, Place]


class Deployment:
    """Replicas that are ready, as far as the serving process knows."""

    def __init__(self, pipeline: Pipeline, replicas: Mapping[str, int]) -> None:
        plan = plan_of(pipeline, *(f"stages.{name}.replicas={count}" for name, count in replicas.items()))
        self.orchestrator = Orchestrator(plan, cast(Any, None), cast(Any, None))
        for name, index in self.places():
            self.at((name, index)).state = ReplicaState.READY
        self.edges = [(edge.source, edge.target) for edge in plan.edges]
        self.link(self.pairs())

    def at(self, place: Place) -> StageReplica:
        return self.orchestrator.pools[place[0]].replicas[place[1]]

    def places(self) -> list[Place]:
        return [(name, it.index) for name, pool in self.orchestrator.pools.items() for it in pool.replicas]

    def pairs(self) -> list[Link]:
        """All that may be linked."""
        return [(one, two) for one in self.places() for two in self.places() if (one[0], two[0]) in self.edges]

    def link(self, links: Iterable[Link]) -> None:
        """These are linked, and no others."""
        for place in self.places():
            self.at(place).links.clear()
        for number, (one, two) in enumerate(links):
            self.at(one).links[two] = self.at(two).links[one] = number

    def whole(self, fixed: Mapping[str, int]) -> bool:
        """Whether there is a combination."""
        pools = self.orchestrator.pools
        choices = [
            [
                it
                for it in pool.replicas
                if fixed.get(name, it.index) == it.index and (it.accepts_requests or name in fixed)
            ]
            for name, pool in pools.items()
        ]
        for combination in itertools.product(*choices):
            by_name = {it.stage.name: it for it in combination}
            if all((two, by_name[two].index) in by_name[one].links for one, two in self.edges):
                return True
        return False

    def bind(self, affinity: str | None = None, fixed: Mapping[str, int] | None = None) -> dict[str, int]:
        """Index of each stage's replica. Raises what a request would get."""
        request = Request(task="echo", affinity=affinity)
        record = self.orchestrator.open(request)
        places = {name: self.at((name, index)) for name, index in (fixed or {}).items()}
        graph = self.orchestrator.subgraph(request)
        replicas, submits = self.orchestrator.requests.bind(record, 0, graph, places, 1.0)
        assert [replica for replica, _ in submits] == list(reversed([replicas[it.stage.name] for it in graph.parts]))
        for one, two in self.edges:
            assert (two, replicas[two].index) in replicas[one].links
        return {name: replica.index for name, replica in replicas.items()}


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("pipeline", [CHAIN, RING], ids=lambda it: it.name)
def test_a_request_is_bound_if_and_only_if_some_combination_is_whole(pipeline: Pipeline, data: st.DataObject) -> None:
    counts = {it.name: data.draw(st.integers(1, 3), it.name) for it in pipeline.stages}
    deployment = Deployment(pipeline, counts)
    pairs = deployment.pairs()
    for _ in range(data.draw(st.integers(1, 4), "times")):
        deployment.link(data.draw(st.sets(st.sampled_from(pairs), min_size=len(pairs) // 3), "links"))
        drained = data.draw(st.sets(st.sampled_from(deployment.places()), max_size=2), "drained")
        for place in deployment.places():
            deployment.at(place).drained = place in drained
        fixed = data.draw(st.sampled_from([{}, *({name: index} for name, index in deployment.places())]), "fixed")
        affinity = data.draw(st.sampled_from([None, "x"]), "affinity")
        if deployment.whole(fixed):
            bound = deployment.bind(affinity, fixed)
            assert fixed.items() <= bound.items()
            assert not any(it in drained and it[0] not in fixed for it in bound.items())
        else:
            with pytest.raises(OmniError, match="has no live replica"):
                deployment.bind(affinity, fixed)


def test_the_first_that_a_pool_would_take_may_lead_nowhere() -> None:
    """The last stage has no choice, and is linked to one only of those that feed it."""
    deployment = Deployment(CHAIN, {"a": 2, "b": 2, "c": 1})
    deployment.link(pair for pair in deployment.pairs() if pair not in [(("b", 0), ("c", 0)), (("a", 0), ("b", 1))])
    for _ in range(4):
        assert deployment.bind() == {"a": 1, "b": 1, "c": 0}


def test_who_is_bound_to_a_replica_stays_there_as_long_as_its_links_allow_that() -> None:
    deployment = Deployment(CHAIN, {"a": 3, "b": 3, "c": 3})
    first = deployment.bind("x")
    for _ in range(2):
        deployment.bind()
    # What feeds the last stage where x is has lost its link to it.
    cut = ("b", first["b"]), ("c", first["c"])
    deployment.link(pair for pair in deployment.pairs() if pair != cut)
    again = deployment.bind("x")
    assert (again["a"], again["b"]) == (first["a"], first["b"])
    # The whole stage in between has lost its links to what feeds it, but for one that is not x's.
    other = next(index for index in range(3) if index != again["b"])
    deployment.link(pair for pair in deployment.pairs() if pair[1] == ("b", other) or pair[0][0] == "b")
    third = deployment.bind("x")
    assert third == {**again, "b": other}


def test_an_affinity_is_not_lost_in_a_moment_without_links() -> None:
    deployment = Deployment(CHAIN, {"a": 3, "b": 3, "c": 3})
    for _ in range(2):
        deployment.bind()
    kept = deployment.bind("x")
    deployment.link([])
    with pytest.raises(OmniError, match="has no live replica"):
        deployment.bind("x")
    deployment.link(deployment.pairs())
    assert deployment.bind("x") == kept

"""The choice of replicas for an attempt of a request: one of each of its stages, linked along every edge.

A TCP link may be broken, and not made anew yet, while both its ends live, so that with several replicas not every
choice will do. Usually each stage's pool chooses in its turn among the replicas that the earlier choices have links to,
which looks at no more than it must. Where these choices lead nowhere, all combinations are considered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omni_actors.pipelines.subgraph import Subgraph
from omni_actors.protocol.request import Request
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

Options = Mapping[str, Sequence[StageReplica]]


def bind(
    pools: Mapping[str, StagePool], request: Request, graph: Subgraph, assigned: Mapping[str, StageReplica]
) -> dict[str, StageReplica]:
    """Return a replica of each stage: the assigned one, or the one that the stage's pool chooses.

    Raises ``stage_unavailable`` where no replica is left. A pool with one replica is not asked whether that replica is
    linked to the others: looking up the links shows it.
    """
    replicas: dict[str, StageReplica] = {}
    for part in graph.parts:
        name = part.stage.name
        given = assigned.get(name)
        if given is None:
            pool = pools[name]
            # With a single replica, skip the link check.
            sources = [replicas[edge.source] for edge in part.inputs] if len(pool.replicas) > 1 else ()
            given = pool.bind(request, sources)
        elif not given.live:
            raise pools[name].unavailable()
        replicas[name] = given
    return replicas


def bind_whole(
    pools: Mapping[str, StagePool], request: Request, graph: Subgraph, assigned: Mapping[str, StageReplica]
) -> dict[str, StageReplica] | None:
    """Return a combination of replicas that is linked along every edge, or ``None`` if there is none: the fallback
    where :func:`bind` has found no replicas.

    Replicas that the request's affinity is pinned to come first, then the less busy ones.
    """
    options: dict[str, Sequence[StageReplica]] = {}
    for part in graph.parts:
        given = assigned.get(name := part.stage.name)
        options[name] = pools[name].options(request) if given is None else [given] if given.live else []
        if not options[name]:
            return None
    edges = [(edge.source, edge.target) for edge in graph.edges]
    pinned = [name for name, some in options.items() if some and some[0] is pools[name].pinned(request)]
    order = [*pinned, *(name for name in options if name not in pinned)]
    return _combination(edges, {name: options[name] for name in order})


def _combination(edges: Sequence[tuple[str, str]], options: Options) -> dict[str, StageReplica] | None:
    """Return one option of each stage, such that all are linked.

    Of the first stage with several options the first possible one is taken, and so on. After each choice the remaining
    options of the other stages are worked out. Where the edges form no cycle (in whatever direction), no choice is ever
    taken back.
    """
    left = _linked(edges, options)
    if not all(left.values()):
        return None
    for name, some in left.items():
        if len(some) > 1:
            tried = (_combination(edges, {**left, name: [one]}) for one in some)
            return next((found for found in tried if found is not None), None)
    return {name: one for name, (one,) in left.items()}


def _linked(edges: Sequence[tuple[str, str]], options: Options) -> Options:
    """Return the options that have a link to some option of every neighbour, which in turn has one, and so on
    (Mackworth's arc consistency, AC-1)."""
    left = dict(options)
    changed = True
    while changed:
        changed = False
        for source, target in edges:
            for one, other in ((source, target), (target, source)):
                some = [it for it in left[one] if any((other, to.index) in it.links for to in left[other])]
                changed |= len(some) < len(left[one])
                left[one] = some
    return left

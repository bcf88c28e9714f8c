"""The Submit frames by which an attempt of a request begins in the workers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from omni_actors.orchestrator.request import RequestStream
from omni_actors.pipelines.declaration import Parameter
from omni_actors.pipelines.parameters import SECTION, complete
from omni_actors.pipelines.subgraph import Subgraph
from omni_actors.protocol.codec import FrameTooLarge, frame, raw
from omni_actors.protocol.errors import invalid_request, stage_unavailable, too_large
from omni_actors.protocol.frames import Submit
from omni_actors.protocol.params import ImageGeneration, Sampling
from omni_actors.protocol.request import Request
from omni_actors.stages.replica import StageReplica


def sections_of(request: Request, declared: Sequence[Parameter] = ()) -> dict[str, msgspec.Raw]:
    """Return the request's parameters as stages get them, the same in every attempt.

    A seed that the caller leaves open is drawn here. Of the ``declared`` parameters of the model family, the ones that
    the caller leaves out get their defaults. Raises the client's mistake (400) when a value cannot be sent, or is not
    one that the family takes.
    """
    params = request.params
    if declared:
        params = {**params, SECTION: complete(declared, params.get(SECTION) or {})}
    sampling = params.get("sampling")
    image = params.get("image")
    if type(image) is ImageGeneration and image.seed is None:
        # A seed that survives JSON numbers, and leaves room for n pictures.
        params = {**params, "image": msgspec.structs.replace(image, seed=random.getrandbits(32))}
    if type(sampling) is Sampling and sampling.seed is None:
        params = {**params, "sampling": msgspec.structs.replace(sampling, seed=random.getrandbits(63))}
    try:
        sections = {name: raw(value) for name, value in params.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid_request(f"The request holds a value that cannot be sent: {error}.") from None
    if request.media:
        sections["clips"] = raw([clip.id for clip in request.media])
    return sections


def submits_of(
    record: RequestStream, key: int, graph: Subgraph, replicas: dict[str, StageReplica], budget_s: float
) -> list[tuple[StageReplica, bytes]]:
    """Return the Submit frame of each replica, consumers first, so that a chunk seldom meets a worker that does not
    know its request yet. Raises 413 for a request that is too large for a frame."""
    submits, sections, ledgers = [], record.sections, record.ledgers
    priority = record.request.priority
    try:
        for part in reversed(graph.parts):
            name = part.stage.name
            replica = replicas[name]
            routes = tuple([(edge.index, _link(replica, replicas[edge.target])) for edge in part.outputs])
            sources: tuple[tuple[int, int], ...] = ()
            if part.tcp_inputs:
                sources = tuple([(edge.index, _link(replica, replicas[edge.source])) for edge in part.tcp_inputs])
            params = {it: sections[it] for it in part.sections if it in sections} if part.sections else {}
            prefix, delivered = None, 0
            if (ledger := ledgers.get(name)) is not None:
                prefix, delivered = ledger.again()
            submit = Submit(
                key, record.id, params, part.ports, routes, part.visible, sources, prefix, delivered, budget_s, priority
            )
            submits.append((replica, frame(submit)))
    except FrameTooLarge as error:
        raise too_large(f"The request is too large: {error}.") from None
    return submits


def _link(replica: StageReplica, other: StageReplica) -> int:
    """Return the id of the link between two live replicas. Raises ``stage_unavailable`` while the link is being made
    anew."""
    try:
        return replica.links[other.stage.name, other.index]
    except KeyError:
        raise stage_unavailable(other.stage.name) from None

"""The pipeline that is simulated, and the deployments of it that schedules choose from."""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Recovery, Stage, Task
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import MEDIA_STAGE, Plan
from omni_actors.pipelines.registry import Registry


def _stage(
    name: str,
    engine: str,
    *ports: Port,
    emits: str | None = None,
    recovery: Recovery = "replay",
    sections: tuple[str, ...] = ("sim",),
) -> Stage:
    return Stage(
        name=name,
        engine=f"{__package__}.engines:{engine}",
        ports=ports,
        sections=sections,
        emits=emits,
        recovery=recovery,
    )


PIPELINE = Pipeline(
    name="simulated",
    stages=(
        _stage("reader", "Reader"),
        _stage("writer", "Writer", Port("context", "n", required=False), emits="text", recovery="prefix"),
        _stage("speaker", "Speaker", Port("text", "n", mode="chunk"), recovery="prefix"),
        _stage(
            "voice",
            "Voice",
            Port("codes", "n", mode="chunk"),
            Port("hint", "n", required=False, mode="chunk"),
            emits="audio",
        ),
        _stage("painter", "Painter", Port("text", "n"), emits="image"),
        _stage("denoiser", "Denoiser", sections=("sim", "image")),
        _stage("easel", "Easel", Port("pixels", "n", mode="chunk"), emits="image"),
    ),
    edges=(
        Edge("reader", "writer.context", "n"),
        Edge("writer", "speaker.text", "n", mode="chunk", capacity=2),
        Edge("speaker", "voice.codes", "n", mode="chunk", capacity=2),
        Edge("writer", "voice.hint", "n", mode="chunk", capacity=2),
        Edge("writer", "painter.text", "n"),
        Edge("denoiser", "easel.pixels", "n", mode="chunk", capacity=2),
    ),
    tasks=(
        Task("chat", entries={"text": "writer"}, outputs={"text": "writer", "audio": "voice", "image": "painter"}),
        Task("describe", entries={"text": "reader"}, outputs={"text": "writer", "audio": "voice"}),
        Task("stream", entries={"text": "speaker.text"}, outputs={"audio": "voice"}),
        Task("draw", entries={"text": "denoiser"}, outputs={"image": "easel"}),
    ),
    doc="Stages of every kind: a full edge in, a full edge out, chunks through three stages and past one; cursors.",
)


@dataclass(frozen=True, slots=True)
class Deployment:
    """How the pipeline is placed: ``replicas`` where it is not one, the edges (``source-target``) by ``tcp``, what is
    under way on an edge, the ``limits`` of it all and of each stage, and the size of sockets' buffers."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    tcp: frozenset[str] = frozenset()
    capacity: int = 2
    limits: Mapping[str, Any] = field(default_factory=dict)
    stage_limits: Mapping[str, int] = field(default_factory=dict)
    buffer_bytes: int = 0


_BY_TCP = frozenset({"writer-speaker", "writer-voice", "speaker-voice"})

DEPLOYMENTS = (
    Deployment(),
    Deployment({"writer": 2}),
    Deployment({"speaker": 2, "voice": 2}, capacity=1),
    Deployment({"writer": 2, "speaker": 2}, limits={"max_inflight": 3, "max_queued": 2}),
    Deployment({"writer": 2, "speaker": 2, "voice": 2, "painter": 2, "reader": 2, "denoiser": 2, "easel": 2}),
    Deployment({"voice": 2}, limits={"sink_bytes": 300}),
    Deployment(tcp=_BY_TCP),
    Deployment({"speaker": 2, "voice": 2}, tcp=_BY_TCP | {"reader-writer", "denoiser-easel"}, capacity=1),
    Deployment({"writer": 2, "denoiser": 2}, buffer_bytes=1),
    Deployment({"writer": 2}, stage_limits={"max_inflight": 1}, limits={"max_per_key": 2}),
    Deployment(stage_limits={"max_inflight": 2, "max_inflight_tokens": 3}, limits={"max_queued": 0}),
)

LIMITS: dict[str, Any] = {
    "max_inflight": 6,
    "max_queued": 3,
    "priority_ageing_s": 0.2,
    "deadline_s": 200.0,
    "sink_bytes": 600,
    "stop_grace_s": 0.5,
    "drain_s": 5.0,
    "release_timeout_s": 5.0,
    "query_timeout_s": 3.0,
    "restart_delay_s": 0.1,
    "restart_delay_max_s": 2.0,
}

BUDGETS: dict[str, Any] = {"start_timeout_s": 8.0, "step_budget_s": 5.0, "compile_budget_s": 10.0}


ARENA_BYTES = 200_000
"""Of shared memory: the room of three large payloads."""


def socket_pair(number: int) -> tuple[socket.socket, socket.socket]:
    """With buffers of the size that a deployment has (the kernel's least, if that is more)."""
    pair = socket.socketpair()
    if size := DEPLOYMENTS[number].buffer_bytes:
        for sock in pair:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    return pair


def plan_has_tcp(number: int) -> bool:
    """Whether links can break while both their ends live."""
    return bool(DEPLOYMENTS[number].tcp)


@functools.cache
def plan_of(number: int) -> Plan:
    """The plan of one of :data:`DEPLOYMENTS`. It has no media process: nothing is decoded or encoded here."""
    deployment = DEPLOYMENTS[number]
    overrides = [f"stages.{stage.name}.limits.arena_bytes={ARENA_BYTES}" for stage in PIPELINE.stages]
    overrides += [
        f"stages.{name}.limits.{key}={value}"
        for name in ("writer", "voice")
        for key, value in deployment.stage_limits.items()
    ]
    overrides += [f"stages.{stage}.replicas={count}" for stage, count in deployment.replicas.items()]
    registry = Registry({"simulated": f"{__name__}:PIPELINE"})
    plan = resolve("simulated", overrides=overrides, platform="cpu", registry=registry)
    stages = [replace(stage, **BUDGETS) for stage in plan.stages if stage.name != MEDIA_STAGE]
    edges = [
        structs.replace(
            edge,
            capacity=deployment.capacity,
            connector="tcp" if f"{edge.source}-{edge.target}" in deployment.tcp else edge.connector,
        )
        for edge in plan.edges
    ]
    return replace(
        plan,
        stages=tuple(replace(stage, index=index) for index, stage in enumerate(stages)),
        edges=tuple(edges),
        limits=replace(plan.limits, **(LIMITS | dict(deployment.limits))),
    )

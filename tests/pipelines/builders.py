"""Small declarations for the tests of pipelines."""

from __future__ import annotations

from pathlib import Path

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.registry import Registry
from omni_actors.protocol.options import Option

ENGINE = "omni_actors.worker.engines.stub:StubEngine"


def stage(name: str, *ports: Port, emits: str | None = None, weight: float = 1.0) -> Stage:
    return Stage(name, ENGINE, "", ports, emits=emits, weight=weight)


def needs(name: str = "text", kind: str = "text") -> Port:
    return Port(name, kind)


def may(name: str = "text", kind: str = "text") -> Port:
    return Port(name, kind, required=False)


ASSISTANT = Pipeline(
    name="assistant",
    stages=(
        Stage("asr", ENGINE, "", (needs("audio", "pcm"),), sections=("transcription",), emits="text"),
        Stage("llm", "autoregressive", "adapter:A", (may(),), sections=("prompt", "sampling"), emits="text", weight=4),
        Stage(
            "acoustic",
            "generation",
            "adapter:B",
            (Port("text", "text", required=False, mode="chunk"),),
            sections=("speech",),
            options={"speed": Option(1.0)},
        ),
        Stage("vocoder", "generation", "adapter:C", (Port("frames", "mel", mode="chunk"),), emits="audio"),
    ),
    edges=(
        Edge("asr", "llm.text", "text"),
        Edge("llm", "acoustic.text", "text", mode="chunk", bridge="bridges:Sentences"),
        Edge("acoustic", "vocoder.frames", "mel", mode="chunk", capacity=4),
    ),
    tasks=(
        Task("chat", {"text": "llm", "audio": "asr.audio"}, {"text": "llm", "audio": "vocoder"}),
        Task("transcription", {"audio": "asr.audio"}, {"text": "asr"}),
        Task("speech", {"text": "acoustic"}, {"audio": "vocoder"}),
    ),
    sample_rate=24000,
    voices=("heart",),
)
"""Speech in and out, as the demo has it."""


def plan_of(pipeline: Pipeline, *overrides: str, platform: str = "cpu", overlay: Path | None = None) -> Plan:
    """Plan a declaration on a platform, with ``--set`` options and a deploy file."""
    module = f"{__name__}:_CURRENT"
    globals()["_CURRENT"] = pipeline
    registry = Registry({pipeline.name: module})
    return resolve(pipeline.name, platform=platform, registry=registry, overrides=overrides, overlay=overlay)

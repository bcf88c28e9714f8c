"""A writer and a speaker without a model: what a client may ask of an omni model, answered from the words alone."""

from typing import Any

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.options import Option

SAMPLE_RATE = 24_000

_OPTIONS = {
    "step_s": Option(0.0, "Seconds that a step with work takes.", least=0),
    "load_s": Option(0.0, "Seconds that loading takes.", least=0),
}


def _stage(name: str, **declared: Any) -> Stage:
    return Stage(
        name=name,
        engine=f"omni_actors.models.stub.engines:{name.title()}",
        options=_OPTIONS,
        **declared,
    )


WRITER = _stage(
    "writer",
    sections=("prompt", "sampling"),
    emits="text",
    recovery="prefix",
    doc="Says words that follow from the prompt, one in a step.",
)

SPEAKER = _stage(
    "speaker",
    ports=(Port("words", "text", required=False, mode="chunk", doc="What is to be said."),),
    sections=("speech",),
    emits="audio",
    doc="Makes sound that follows from each word.",
)

PIPELINE = Pipeline(
    name="stub-voice",
    stages=(WRITER, SPEAKER),
    edges=(Edge("writer", "speaker.words", "text", mode="chunk"),),
    tasks=(
        Task("chat", entries={"text": "writer"}, outputs={"text": "writer", "audio": "speaker"}),
        Task("completion", entries={"text": "writer"}, outputs={"text": "writer"}),
        Task("speech", entries={"text": "speaker"}, outputs={"audio": "speaker"}),
    ),
    voices=("tone",),
    sample_rate=SAMPLE_RATE,
    speech_fields=(),
    doc="Chat and speech without a model: writer → speaker. For tests of what surrounds one.",
)

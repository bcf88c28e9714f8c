"""The pipeline of a model with audio input: an audio tower, then a decoder with the tower's features in its prompt."""

from __future__ import annotations

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.options import Option

MAX_TOKENS = 4096
"""Most tokens of an answer whose request names no limit: some twenty minutes of speech."""


def listening_pipeline(
    name: str,
    family: str,
    *,
    architecture: str,
    checkpoints: tuple[str, ...],
    languages: tuple[str, ...],
    chats: bool,
    max_seconds: float,
    doc: str,
) -> Pipeline:
    """Return a pipeline of stages ``encoder`` (``family.encoder:Encoder``) and ``listener``
    (``family.listener:Decoder``). ``chats`` says whether the model also answers chats, with clips and without."""
    encoder = Stage(
        name="encoder",
        engine="generation",
        adapter=f"{family}.encoder:Encoder",
        ports=(Port("audio", "pcm", mode="chunk", doc="The clips, in order: each payload is one, mono."),),
        options={
            "max_seconds": Option(max_seconds, "Longest clip, in seconds; longer ones are refused.", least=1),
            "cache_bytes": Option(
                64 << 20,
                "Memory for the features of the clips encoded last; a clip that comes again is not encoded again.",
                least=0,
            ),
        },
        input_limits={"audio": "max_seconds"},
        doc="Audio tower: clips to features.",
    )
    listener = Stage(
        name="listener",
        engine="autoregressive",
        adapter=f"{family}.listener:Decoder",
        ports=(
            Port("features", "features", required=not chats, mode="chunk", doc="What was heard, a payload per clip."),
        ),
        sections=("prompt", "sampling", "transcription") if chats else ("transcription",),
        emits="text",
        weight=4.0,
        options={"max_tokens": Option(MAX_TOKENS)},
        separable=True,
        doc="Decoder: what was heard, and text, to text.",
    )
    transcription = Task("transcription", entries={"audio": "encoder.audio"}, outputs={"text": "listener"})
    chat = Task("chat", entries={"text": "listener", "audio": "encoder.audio"}, outputs={"text": "listener"})
    completion = Task("completion", entries={"text": "listener"}, outputs={"text": "listener"})
    return Pipeline(
        name=name,
        stages=(encoder, listener),
        edges=(Edge("encoder", "listener.features", "features", mode="chunk"),),
        tasks=(chat, completion, transcription) if chats else (transcription,),
        architectures=(architecture,),
        checkpoints=checkpoints,
        languages=languages,
        doc=doc,
    )

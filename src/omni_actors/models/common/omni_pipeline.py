"""The pipeline of an omni model: encoder → thinker → talker → codec → sound. The thinker alone answers in text."""

from __future__ import annotations

from omni_actors.models.common.chat_options import CHAT_OPTIONS
from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.options import Option


def omni_pipeline(
    name: str,
    family: str,
    codec: Stage,
    *,
    classes: str,
    max_frames: int,
    sample_rate: int,
    architectures: tuple[str, ...],
    checkpoints: tuple[str, ...],
    files: tuple[str, ...] = (),
    voices: tuple[str, ...],
    doc: str,
) -> Pipeline:
    """Return a pipeline of stages ``encoder`` (``family.encoder:Encoder``), ``thinker`` and ``talker`` (whose classes'
    names begin with ``classes``), and ``codec`` with a port ``codes``. ``max_frames`` bounds the speech of a request
    without a limit. ``family.pipeline:describe`` returns the facts of a checkpoint's folder, and
    ``family.pipeline:network`` the sizes of its thinker."""
    encoder = Stage(
        name="encoder",
        engine="generation",
        adapter=f"{family}.encoder:Encoder",
        ports=(Port("media", "media", mode="chunk", doc="The request's images, clips and videos, in order."),),
        options={
            "cache_bytes": Option(
                64 << 20,
                "Memory for the features of the media encoded last; a medium that comes again is not encoded again.",
            ),
            "image_max_pixels": Option(
                None,
                "Most pixels of an image after resizing; by default the checkpoint's own limit.",
                type=int,
                least=1024,
            ),
            "video_max_pixels": Option(
                None,
                "Most pixels of a video's frame after resizing; by default the processor's own limit.",
                type=int,
                least=1024,
            ),
        },
        doc="The towers that look and listen: media to features.",
    )
    thinker = Stage(
        name="thinker",
        engine="autoregressive",
        adapter=f"{family}.thinker:{classes}Thinker",
        ports=(
            Port("features", "features", required=False, mode="chunk", doc="Of the prompt's media, one payload each."),
        ),
        sections=("prompt", "sampling", "speech"),
        emits="text",
        separable=True,
        network=f"{family}.pipeline:network",
        weight=4.0,
        options=CHAT_OPTIONS,
        doc="Reads text and features, writes text.",
    )
    talker = Stage(
        name="talker",
        engine="autoregressive",
        adapter=f"{family}.talker:{classes}Talker",
        ports=(Port("states", "hidden", mode="chunk", doc="What the thinker read and writes, as it goes."),),
        sections=("speech", "sampling"),
        weight=2.0,
        options={"max_tokens": Option(max_frames)},
        doc="Says what the thinker writes, while it writes, in codec frames.",
    )
    media = dict.fromkeys(("audio", "image", "video"), "encoder.media")
    return Pipeline(
        name=name,
        stages=(encoder, thinker, talker, codec),
        edges=(
            Edge("encoder", "thinker.features", "features", mode="chunk", capacity=8),
            Edge("thinker", "talker.states", "hidden", mode="chunk"),
            Edge("talker", f"{codec.name}.codes", "codes", mode="chunk"),
        ),
        tasks=(
            Task("chat", entries={"text": "thinker", **media}, outputs={"text": "thinker", "audio": codec.name}),
            Task("completion", entries={"text": "thinker"}, outputs={"text": "thinker"}),
            Task("speech", entries={"text": "thinker"}, outputs={"audio": codec.name}),
        ),
        architectures=architectures,
        checkpoints=checkpoints,
        files=files,
        describe=f"{family}.pipeline:describe",
        voices=voices,
        sample_rate=sample_rate,
        speech_fields=("max_tokens", "initial_chunk_frames", "temperature", "top_k", "top_p", "repetition_penalty"),
        doc=doc,
    )

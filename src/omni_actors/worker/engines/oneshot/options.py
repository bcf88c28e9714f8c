"""The options of every stage that decodes codec frames window by window: for a declaration's ``options``. Read by
:mod:`omni_actors.worker.engines.oneshot.codec`."""

from omni_actors.protocol.options import Option

CODEC_OPTIONS: dict[str, Option] = {
    "first_chunk_frames": Option(
        2, "Frames of an answer's first piece of sound; a request may ask for its own number.", least=1
    ),
    "min_chunk_frames": Option(4, "Fewest frames of the pieces behind it.", least=1),
    "chunk_frames": Option(25, "Most frames of a piece, and its size where the ramp is off.", least=1),
    "left_context_frames": Option(
        None,
        "Frames before a piece that are decoded again with it. With null its samples are as in the whole: by a memory "
        "of what came before, or by as many frames as that takes.",
        type=int,
        least=0,
    ),
    "ramp": Option(
        True,
        "Let pieces grow while the listener has enough to play and shrink when it has not; otherwise each has "
        "chunk_frames.",
    ),
}

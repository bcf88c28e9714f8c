"""The options of every stage that decodes codec frames in windows, for a declaration's ``options``.

:mod:`omni_actors.worker.engines.oneshot.codec` reads the options.
"""

from omni_actors.protocol.options import Option

CODEC_OPTIONS: dict[str, Option] = {
    "first_chunk_frames": Option(
        2, "Frames of an answer's first piece of sound; a request may name another number.", least=1
    ),
    "min_chunk_frames": Option(4, "Fewest frames of the pieces after the first one.", least=1),
    "chunk_frames": Option(25, "Most frames of a piece, and the size of every piece if ramp is false.", least=1),
    "left_context_frames": Option(
        None,
        "Earlier frames that are decoded again with each piece. With null the samples are those of the "
        "whole sound: the codec keeps its state, or decodes as many earlier frames as that takes.",
        type=int,
        least=0,
    ),
    "ramp": Option(
        True,
        "Whether pieces grow while the listener has enough to play, and shrink otherwise; if false, each "
        "piece has chunk_frames.",
    ),
}

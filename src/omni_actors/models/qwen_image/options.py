"""Options of the stages of Qwen-Image's edits. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from omni_actors.protocol.options import Option

EDIT_OPTIONS: Mapping[str, Option] = {
    "picture_pixels": Option(
        1024 * 1024,
        "Pixels to which a client's picture is scaled for the transformer, and of a new picture whose size is left "
        "open.",
        least=1024,
    ),
    "seen_pixels": Option(
        384 * 384, "Pixels to which each of several pictures is scaled for the text encoder.", least=1024
    ),
}
"""Option name → :class:`Option`, of edits."""

LAYERED_OPTIONS: Mapping[str, Option] = {
    "picture_pixels": Option(
        640 * 640, "Pixels to which the client's picture is scaled: the size of each layer.", least=1024
    ),
    "layers": Option(4, "Layers of a request that names no number.", least=1),
    "max_layers": Option(8, "Most layers of a request.", least=1),
}
"""Option name → :class:`Option`, of pictures in layers."""

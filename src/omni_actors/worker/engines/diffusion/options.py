"""The options that every stage of engine kind ``diffusion`` has. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from omni_actors.protocol.options import Option

OPTIONS: Mapping[str, Option] = {
    "steps": Option(
        None, "Denoising steps of a request that names none; by default the model's own.", type=int, least=1
    ),
    "max_steps": Option(1000, "Most denoising steps of a request.", least=1),
    "guidance": Option(None, "Guidance scale of a request that names none; by default the model's own.", type=float),
    "size": Option(
        None,
        "Width and height in pixels of a picture whose size is left open; by default the model's own.",
        type=int,
        least=8,
    ),
    "max_pixels": Option(
        None, "Most pixels of a picture; by default four times the model's own size.", type=int, least=64
    ),
    "max_rows": Option(16, "Most rows of one forward; a picture with guidance takes two.", least=1),
    "memory_bytes": Option(
        None,
        "Memory for pictures under way, beside the weights; by default what the device has free after loading.",
        type=int,
        least=1,
    ),
    "join": Option(
        True,
        "Whether pictures may share forwards that differ in steps or guidance or begin at different times; off only to "
        "compare.",
    ),
    "preview_side": Option(256, "Longest side of a preview in pixels; larger previews are shrunk.", least=8),
}
"""Option name → :class:`Option`."""

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
    "cache_threshold": Option(
        0.0,
        "Step cache: relative change of the first blocks' residual below which a step reuses the other blocks' "
        "residual; 0 for no cache.",
        least=0,
    ),
    "cache_first_blocks": Option(1, "Step cache: blocks at the beginning that every step computes.", least=1),
    "cache_last_blocks": Option(0, "Step cache: blocks at the end that every step computes.", least=0),
    "cache_warmup": Option(0, "Step cache: steps at the beginning that are computed in full.", least=0),
    "cache_max_skips": Option(0, "Step cache: most steps in a row that reuse a residual; 0 for no bound.", least=0),
    "loras": Option("", "LoRA adapters to load at the start: name=file or name=folder, separated by commas."),
    "lora_bytes": Option(
        None, "Most memory for LoRA adapters; by default what the stage's memory has room for.", type=int, least=0
    ),
    "offload": Option(
        "none",
        "Weights that wait in the host's memory: none, whole components in turn (model), or blocks and layers in turn "
        "(group).",
        choices=("none", "model", "group"),
    ),
    "compile": Option(False, "Whether the denoiser's blocks are compiled, each kind when it is first called."),
    "preview_side": Option(256, "Longest side of a preview in pixels; larger previews are shrunk.", least=8),
}
"""Option name → :class:`Option`."""

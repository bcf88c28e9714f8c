"""Settings of torch_npu before a worker computes. ``doctor`` lists the settings; a runtime applies the settings on
opening."""

from __future__ import annotations

from omni_actors.platforms.runtime import Patch


def _binary_operators() -> None:
    import torch_npu

    torch_npu.npu.set_compile_mode(jit_compile=False)


def _internal_format() -> None:
    import torch_npu

    torch_npu.npu.config.allow_internal_format = True


BINARY_OPERATORS = Patch(
    "ascend-binary-operators",
    "batches vary in shape: with just-in-time operators each new shape would be compiled in the middle of a step",
    _binary_operators,
)

INTERNAL_FORMAT = Patch(
    "ascend-internal-format",
    "weights in the NZ and FRACTAL_Z layouts keep them: otherwise torch_npu casts them back to ND",
    _internal_format,
)

PATCHES = (BINARY_OPERATORS, INTERNAL_FORMAT)

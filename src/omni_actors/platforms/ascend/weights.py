"""Weights in the layouts of an NPU's matrix unit: NZ for products, FRACTAL_Z for convolutions.

The numbers are values of ``aclFormat`` (CANN, acl_base.h).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

FRACTAL_Z = 4
FRACTAL_NZ = 29

_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
"""Dtypes with these layouts; float32 has none."""


def nz(weight: torch.Tensor) -> torch.Tensor:
    """Return a product's weight in the NZ layout, if the dtype has the layout. The shape does not change."""
    import torch_npu

    if weight.dtype not in _SIXTEEN_BITS:
        return weight
    cast: torch.Tensor = torch_npu.npu_format_cast(weight.contiguous(), FRACTAL_NZ)
    return cast


def fractal_z(weight: torch.Tensor) -> torch.Tensor:
    """Return a convolution's weight in the FRACTAL_Z layout, if the dtype has the layout."""
    import torch_npu

    if weight.dtype not in _SIXTEEN_BITS:
        return weight
    cast: torch.Tensor = torch_npu.npu_format_cast(weight.contiguous(), FRACTAL_Z)
    return cast


@torch.no_grad()  # not inference mode: a parameter takes no tensor of that
def lay_out(modules: Iterable[torch.nn.Module]) -> int:
    """Give every product and ungrouped convolution within ``modules`` the NPU's layout. Returns the number of
    weights."""
    count = 0
    for module in dict.fromkeys(inner for outer in modules for inner in outer.modules()):
        if isinstance(module, torch.nn.Linear):
            module.weight.data = nz(module.weight.data)
        elif isinstance(module, (torch.nn.Conv1d, torch.nn.ConvTranspose1d)) and module.groups == 1:
            module.weight.data = fractal_z(module.weight.data)
        else:
            continue
        count += 1
    return count

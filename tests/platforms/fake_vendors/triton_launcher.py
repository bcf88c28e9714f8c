"""Triton, without a compiler: a kernel that is launched is computed by a function of its name, and recorded.

Not on a path, where torch would find it and take it for the real one: :func:`imported` lets one module have it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from tests.platforms.fake_vendors.host_device import record

from omni_actors.platforms.runtime.kernels import paged_decode


def imported(module: str) -> None:
    """Import ``module``, for which ``triton`` is this one."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.__spec__ = ModuleSpec("triton", None)
    language.constexpr = int  # type: ignore[attr-defined]
    triton.language = language  # type: ignore[attr-defined]
    triton.jit = lambda function: _Kernel(function.__name__)  # type: ignore[attr-defined]
    triton.next_power_of_2 = lambda number: 1 << (number - 1).bit_length()  # type: ignore[attr-defined]
    with patch.dict(sys.modules, {"triton": triton, "triton.language": language}):
        found = import_module(module)
    sys.modules[module] = found


class _Kernel:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **constants: Any) -> None:
            record(f"triton.{self._name}")
            {"_decode": _decode}[self._name](*args, **constants)

        return launch


def _decode(
    out: torch.Tensor,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
    *strides: int,
    WINDOW: bool,
    SOFTCAP: bool,
    **sizes: int,
) -> None:
    asked = window if WINDOW else None, softcap if SOFTCAP else None
    out.copy_(paged_decode(query, keys, values, table, lengths, scale, *asked))

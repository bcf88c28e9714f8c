"""The families that are compared with diffusers' own pipelines: each module here has ``CASES``."""

from __future__ import annotations

import importlib
import pkgutil

from tests.models.diffusion.parity import Case


def all_cases() -> list[Case]:
    """Return the cases of all modules of this package, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [case for name in names for case in importlib.import_module(f"{__name__}.{name}").CASES]

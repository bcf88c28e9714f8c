"""Fixtures of model families: what is loaded once and serves many files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.models.omni.comparison import Comparison


@pytest.fixture(scope="session")
def compared(tiny_model: Callable[[str], Path]) -> Callable[[str], Comparison]:
    """Call it with an omni family: its pipeline beside transformers' model. Who breaks the line mends it again."""

    @functools.cache
    def compared(family: str) -> Comparison:
        from tests.models.omni.comparison import FAMILIES, Comparison

        return Comparison(FAMILIES[family], tiny_model(family))

    return compared

"""Compiled blocks compute what the blocks compute, and compilations are told whenever they happen.

torch's tracing runs here as it does in a worker; behind it the graphs are run as they are (``eager``), because a
compiler takes a minute. ``benchmarks/diffusion_compile.py`` compares with the compiler and measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.models.diffusion.acceleration.deep import CASE, orders, write_deep
from tests.models.diffusion.parity import TOLERANCE, Driven

from omni_actors.models.diffusion.acceleration.compiled import CompiledBlocks
from omni_actors.protocol.errors import OmniError

pytestmark = [pytest.mark.slow, pytest.mark.torch]

MIXED = orders({}, {"cache": {"threshold": 0.6}})[:3]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deep(tmp_path_factory.mktemp("deep") / "sd3", tiny_model("sd3"))


@pytest.fixture
def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Driven:
    monkeypatch.setattr(CompiledBlocks, "backend", "eager")
    return Driven(CASE, folder, compile=True)


def test_compiled_blocks_equal_the_blocks_and_a_new_shape_is_told_as_compiling(folder: Path, compiled: Driven) -> None:
    eager = Driven(CASE, folder).run(MIXED)
    told: list[float] = []

    @contextmanager
    def compiling() -> Iterator[None]:
        told.append(compilations())
        yield

    def compilations() -> float:
        return compiled.engine.counters()["compilations_total"]

    by_loading = compilations()
    assert by_loading > 0
    compiled.adapter.compiling = compiling
    traces = compiled.run(MIXED)
    assert max(trace.differs(it) for trace, it in zip(traces, eager, strict=True)) <= TOLERANCE
    known = len(told)
    assert known > 0  # one row alone, when the other rows skip blocks
    assert known == compilations() - by_loading
    compiled.run(MIXED)
    assert len(told) == known  # all shapes of these pictures are compiled
    with pytest.raises(OmniError, match="'compile' on"):
        compiled.adapter.query("load_lora", {"name": "red", "path": "/nowhere"})

"""torch_npu.profiler: what starts a recording."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.platforms.fake_vendors.host_device import record


def tensorboard_trace_handler(folder: str) -> Callable[[], None]:
    def write() -> None:
        (Path(folder) / "trace").write_text("")

    return write


@contextlib.contextmanager
def profile(on_trace_ready: Callable[[], None]) -> Iterator[None]:
    record("npu.profiler")
    yield
    on_trace_ready()

"""One bad request in a batch of eight of a one-shot engine, by the codec's: seven sound as they do alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.worker.engines.codec_driver import (
    PORT,
    Convolutions,
    Remembers,
    Sound,
    codec_engine,
    open_stream,
    payload,
    run_all,
)

from omni_actors.platforms import Fault
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot import GenerationEngine
from omni_actors.worker.engines.oneshot.codec import CodecAdapter, CodeStream
from omni_actors.worker.isolation import BrokenModel

BATCH, FRAMES, MARK = 8, 24, 15
"""A stream with code ``MARK`` is the bad one."""


class _Faulty:
    """What happens where ``MARK`` is: ``fault``. ``memory`` bounds the rows of a batch."""

    fault: Callable[[], None]
    memory = 1 << 30
    broken: Exception | None = None

    def check(self, codes: torch.Tensor) -> None:
        if self.broken is not None:
            raise self.broken
        if len(codes) > self.memory:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        if (codes == MARK).any():
            self.fault()


def planted() -> None:
    raise ValueError("secret detail")


def no_memory() -> None:
    raise MemoryError


class FaultyWindows(_Faulty, Convolutions):
    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        self.check(codes)
        return super().decode(codes)


class FaultyMemory(_Faulty, Remembers):
    def decode_next(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.check(codes)
        return super().decode_next(codes, begins, memories, fresh)


KINDS: tuple[Any, ...] = (FaultyWindows, FaultyMemory)


def make(kind: type[CodecAdapter], fault: Callable[[], None] = planted) -> tuple[GenerationEngine, Any]:
    engine = codec_engine(kind, {"first_chunk_frames": 4, "chunk_frames": 8}, max_batch=BATCH)
    model: Any = engine._adapter
    model.fault = fault
    return engine, model


def streams(bad: Sequence[int] = ()) -> list[np.ndarray[Any, Any]]:
    made = list(np.random.default_rng(0).integers(0, MARK, (BATCH, FRAMES, 2)))
    for key in bad:
        made[key][FRAMES // 2] = MARK
    return made


def decode(engine: GenerationEngine, codes: dict[int, np.ndarray[Any, Any]]) -> Sound:
    out = Sound()
    for key in codes:
        open_stream(engine, key)
    for at in range(0, FRAMES, 4):
        for key, it in codes.items():
            if key not in out.errors:
                engine.feed(key, PORT, payload(it[at : at + 4].copy()), at + 4 >= FRAMES)
        if engine.runnable:
            engine.step(out)
    run_all(engine, out)
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", range(BATCH))
@pytest.mark.parametrize(("fault", "code"), [(planted, "stage_failed"), (no_memory, "out_of_memory")])
def test_one_of_eight_fails_alone(kind: Any, bad: int, fault: Callable[[], None], code: str) -> None:
    engine, _ = make(kind, fault)
    clean = [decode(engine, {key: it}).of(key) for key, it in enumerate(streams())]
    out = decode(engine, dict(enumerate(streams([bad]))))
    assert set(out.errors) == {bad}
    error = out.errors[bad]
    assert (error.code, error.stage, error.status) == (code, "codec", 503 if code == "out_of_memory" else 500)
    assert "secret" not in error.message
    for key in set(range(BATCH)) - {bad}:
        np.testing.assert_allclose(out.of(key), clean[key], rtol=0, atol=1e-6)
    # What the bad one got before is what it would have got: no piece was made twice, or of half a batch.
    told = out.of(bad)
    np.testing.assert_allclose(told, clean[bad][: len(told)], rtol=0, atol=1e-6)
    assert engine.counters()["requests"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_out_of_memory_is_several_and_the_next_one_too(kind: Any) -> None:
    """A request that does not fit into memory fails, a smaller one does not, and none that fits alone fails with it."""
    engine, model = make(kind)
    clean = [decode(engine, {key: it}).of(key) for key, it in enumerate(streams())]
    model.memory = 3
    out = decode(engine, dict(enumerate(streams())))
    assert not out.errors
    for key in range(BATCH):
        np.testing.assert_allclose(out.of(key), clean[key], rtol=0, atol=1e-6)
    model.memory = 0
    assert decode(engine, {0: streams()[0]}).errors[0].code == "out_of_memory"
    model.memory = 1
    np.testing.assert_allclose(decode(engine, {1: streams()[1]}).of(1), clean[1], rtol=0, atol=1e-6)


class Lost(RuntimeError):
    pass


class LosingRuntime(CpuRuntime):
    def fault(self, error: BaseException) -> Fault:
        return Fault.DEVICE if isinstance(error, Lost) else super().fault(error)


def test_a_lost_device_ends_the_worker() -> None:
    engine, model = make(FaultyWindows)
    engine._faults.runtime = LosingRuntime("cpu", {})
    model.broken = Lost("the context is gone")
    open_stream(engine, 0)
    engine.feed(0, PORT, payload(streams()[0]), True)
    with pytest.raises(Lost):
        run_all(engine, Sound())


def test_a_codec_that_fails_on_what_it_loaded_with_ends_the_worker() -> None:
    engine, model = make(FaultyWindows)
    model.broken = RuntimeError("a weight is gone")
    out = Sound()
    for key in range(3):
        open_stream(engine, key)
        engine.feed(key, PORT, payload(streams()[key]), True)
    with pytest.raises(BrokenModel, match="a weight is gone"):
        run_all(engine, out)


def test_requests_that_are_all_bad_end_no_worker() -> None:
    engine, _ = make(FaultyWindows)
    out = decode(engine, dict(enumerate(streams(range(BATCH)))))
    assert set(out.errors) == set(range(BATCH))


class Reluctant(Convolutions):
    """Does not close its streams."""

    def close(self, state: CodeStream) -> None:
        raise ValueError("secret detail")


def test_a_state_that_does_not_close_harms_nobody() -> None:
    engine = codec_engine(Reluctant)
    open_stream(engine, 0)
    engine.abort(0)
    engine.admit(Work(1, "r1", {}, frozenset({PORT}), routed=True))
    engine.feed(1, PORT, payload(streams()[1]), True)
    out = Sound()
    run_all(engine, out)
    assert len(out.of(1))

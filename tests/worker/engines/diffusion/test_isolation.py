"""One bad request fails alone, wherever it is bad: its neighbours are, bit for bit, what they are alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worker.engines.diffusion.driver import Bench, alone, check_alone, sharing
from tests.worker.engines.diffusion.toy import Planted, Toy

from omni_actors.platforms import Fault
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.protocol.errors import OmniError
from omni_actors.worker.engines.diffusion.cursor import Cursor
from omni_actors.worker.isolation import BrokenModel

PLACES = (
    *("encode", "encode_key", "begin", "batch_key", "rows", "unhashable", "predict", "short", "advance"),
    *("preview", "nan", "decode", "decode_key", "wrong"),
)

GUIDANCE: dict[str, Any] = {"guidance": 3.0, "steps": 5, "previews": 2}


def secret() -> Exception:
    return Planted("secret detail")


@pytest.mark.parametrize("at_step", [0, 2])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_one_of_eight_fails_alone(place: str, together: bool, at_step: int) -> None:
    bench = Bench()
    plan = bench.toy.plan
    plan.together, plan.at_step, plan.fault = together, at_step, secret
    plan.faults[3] = place
    for key in range(8):
        bench.admit(key, **GUIDANCE)
    bench.run()
    error = bench.error(3)
    assert (error.code, error.status, error.stage) == ("stage_failed", 500, "image")
    assert "secret" not in error.message
    for key in set(range(8)) - {3}:
        check_alone(bench, key, **GUIDANCE)
    assert bench.counters()["failures_total"] == 1
    bench.check_empty()


@pytest.mark.parametrize("place", ["encode", "begin", "predict", "advance", "decode"])
def test_memory_that_is_short_for_one_fails_that_one(place: str) -> None:
    bench = Bench()
    plan = bench.toy.plan
    plan.together, plan.fault = True, MemoryError
    plan.faults[3] = place
    for key in range(8):
        bench.admit(key)
    bench.run()
    assert (bench.error(3).code, bench.error(3).status) == ("out_of_memory", 503)
    for key in set(range(8)) - {3}:
        check_alone(bench, key)
    bench.admit(9)
    bench.run()
    check_alone(bench, 9)
    bench.check_empty()


@pytest.mark.parametrize("n", [1, 8])
def test_a_batch_too_large_for_the_memory_becomes_several_and_so_do_the_next_ones(n: int) -> None:
    bench = Bench()
    bench.toy.plan.most, bench.toy.plan.together = 3, True
    keys = range(8 // n)
    for key in keys:
        bench.admit(key, n=n, steps=6)
    bench.run()
    for key in keys:
        assert bench.error(key) is None
        check_alone(bench, key, n=n, steps=6)
    counters = bench.counters()
    assert counters["out_of_memory_total"] >= 1
    assert counters["forwards_total"] * 3 >= 8 * 6
    tried = sum(size > 3 for size in sharing(bench)["forward"])
    assert tried <= 3, "later batches are no larger than what fitted"
    bench.check_empty()


def test_a_preview_without_memory_is_left_out() -> None:
    bench = Bench()
    bench.toy.plan.faults[0], bench.toy.plan.fault = "preview", MemoryError
    bench.admit(0, previews=1)
    bench.run()
    assert bench.previews(0) == []
    check_alone(bench, 0)


@pytest.mark.parametrize("place", ["open", "feed"])
def test_a_failure_before_the_work_is_the_requests_own(place: str) -> None:
    bench = Bench()
    bench.toy.plan.faults[0], bench.toy.plan.fault = place, secret
    with pytest.raises(OmniError) as failed:
        bench.admit(0, ports=("text",))
        bench.engine.feed(0, "text", None, True)
    assert failed.value.info.code == "stage_failed"
    assert "secret" not in failed.value.info.message
    bench.admit(1)
    bench.run()
    check_alone(bench, 1)
    bench.check_empty()


class Lost(RuntimeError):
    pass


class LosingRuntime(CpuRuntime):
    def fault(self, error: BaseException) -> Fault:
        return Fault.DEVICE if isinstance(error, Lost) else super().fault(error)


@pytest.mark.parametrize("place", ["encode", "begin", "predict", "advance", "preview", "decode"])
def test_a_lost_device_ends_the_worker(place: str) -> None:
    bench = Bench()
    bench.engine._faults.runtime = LosingRuntime("cpu", {})
    bench.toy.plan.faults[0], bench.toy.plan.fault = place, Lost
    bench.admit(0, previews=1)
    with pytest.raises(Lost):
        bench.run()


def test_a_model_that_fails_on_what_it_loaded_with_ends_the_worker() -> None:
    bench = Bench()
    bench.toy.plan.broken = True
    for key in range(3):
        bench.admit(key, width=64 + 8 * key)
    with pytest.raises(BrokenModel):
        bench.run()


@pytest.mark.parametrize("place", ["encode", "begin", "predict", "decode"])
def test_requests_that_are_all_bad_end_no_worker(place: str) -> None:
    bench = Bench()
    bench.toy.plan.faults = dict.fromkeys(range(6), place)
    for key in range(6):
        bench.admit(key, width=64 + 8 * key)
    bench.run()
    assert all(bench.error(key) is not None for key in range(6))
    assert bench.toy.events.count("prove") >= 1
    bench.admit(9)
    bench.run()
    check_alone(bench, 9)


def test_a_state_that_does_not_close_harms_nobody() -> None:
    bench = Bench()
    bench.toy.plan.faults[0] = "close"
    bench.admit(0)
    bench.admit(1)
    bench.run()
    check_alone(bench, 0)
    check_alone(bench, 1)


def test_several_that_fail_together_run_alone_in_steps_of_their_own() -> None:
    """So that others get a turn between them, and one step stays one slice."""
    bench = Bench()
    bench.toy.plan.together = True
    bench.toy.plan.faults[2] = "encode"
    for key in range(4):
        bench.admit(key)
    before = 0
    while bench.engine.runnable:
        bench.step()
        slices = sum(what != "forward" for what, _ in bench.toy.units)
        assert slices <= before + 1
        before = slices
    assert sharing(bench)["encode"] == [4, 1, 1, 1, 1]


class Wrong(Toy):
    """Returns what its contract forbids."""

    given: object = None

    def encode(self, cursors: object) -> object:  # type: ignore[override]
        return self.given


@pytest.mark.parametrize("given", [None, [1], iter([]), iter([[1, 2]]), iter(["a"]), iter([7])])
def test_a_wrong_encoding_names_its_method(given: object) -> None:
    bench = Bench()
    bench.toy.__class__ = Wrong
    bench.toy.given = given  # type: ignore[attr-defined]
    bench.admit(0)
    bench.run()
    assert "Wrong.encode returned" in bench.error(0).message
    bench.check_empty()


@pytest.mark.parametrize("method", ["open", "rows", "predict"])
@pytest.mark.parametrize("value", [None, 0, "text", []])
def test_a_wrong_return_names_its_method(method: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.toy, method, lambda *_: value)
    if method == "open":
        with pytest.raises(OmniError, match=f"Toy.{method} returned"):
            bench.admit(0)
        return
    bench.admit(0)
    bench.run()
    assert f"Toy.{method} returned" in bench.error(0).message
    bench.check_empty()


def test_a_picture_of_a_request_that_fails_takes_its_siblings_along() -> None:
    class Second(Toy):
        def advance(self, cursor: Cursor, prediction: object) -> None:
            if cursor.key == 0 and cursor.index == 1:
                raise Planted
            super().advance(cursor, prediction)

    bench = Bench()
    bench.toy.__class__ = Second
    bench.admit(0, n=3)
    bench.admit(1, n=2)
    bench.run()
    assert bench.error(0) is not None
    assert bench.pictures(0) == {}
    check_alone(bench, 1, n=2)
    bench.check_empty()


def test_requests_beyond_the_limit_are_refused() -> None:
    bench = Bench()
    bench.engine.max_requests = 1
    bench.admit(0)
    with pytest.raises(OmniError) as refused:
        bench.admit(1)
    assert refused.value.info.status == 429
    bench.run()
    assert alone(0).pictures(0)[0].shape == (64, 64, 1)

"""Joining switched off: request batching, as a baseline."""

from __future__ import annotations

from tests.worker.engines.diffusion.driver import Bench, check_alone, sharing


def test_only_equal_pictures_that_start_together_share_forwards() -> None:
    bench = Bench(join=False)
    for key in range(4):
        bench.admit(key, steps=4 if key < 3 else 5)
    bench.run()
    assert sharing(bench)["forward"] == [3] * 4 + [1] * 5
    for key in range(4):
        check_alone(bench, key, steps=4 if key < 3 else 5)
    bench.check_empty()


def test_a_newcomer_waits_until_the_batch_has_ended() -> None:
    bench = Bench(join=False)
    bench.admit(0, steps=6)
    bench.run(lambda: bench.steps_of(0) == 2)
    bench.admit(1, steps=6)
    bench.admit(2, steps=1, width=128)
    bench.run()
    assert bench.out.ended == [0, 1, 2]
    assert set(sharing(bench)["forward"]) == {1}


def test_guidance_keeps_pictures_apart() -> None:
    bench = Bench(join=False)
    bench.admit(0, guidance=3.0)
    bench.admit(1, guidance=4.0)
    bench.run()
    assert set(sharing(bench)["forward"]) == {1}


def test_a_batch_has_as_many_pictures_as_fit_one_forward() -> None:
    bench = Bench(join=False, max_rows=8)
    for key in range(8):
        bench.admit(key, steps=3, guidance=3.0)
    bench.run()
    bench.toy.units.clear()
    for key in range(8, 16):
        bench.admit(key, steps=3, guidance=3.0)
    bench.run()
    assert sharing(bench)["forward"] == [4] * 6
    assert bench.out.ended[8:] == list(range(8, 16))


def test_a_batch_goes_on_when_some_of_it_have_left() -> None:
    bench = Bench(join=False)
    for key in range(3):
        bench.admit(key, n=2)
    bench.run(lambda: bench.steps_of(0) == 2)
    bench.abort(0)
    bench.admit(3)
    bench.run()
    for key in (1, 2):
        check_alone(bench, key, n=2)
    assert bench.out.ended == [1, 2, 3]
    bench.check_empty()

"""What leaves: pictures, previews of the clean picture, progress, usage; and nothing without a credit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.worker.engines.diffusion.driver import Bench, alone, check_alone


def test_a_picture_has_its_index_and_seed_and_the_usage_counts_it() -> None:
    bench = alone(3, seed=9, steps=6, cache={"threshold": 1.0})
    (payload,) = bench.payloads(3)
    assert payload.kind == "pixels"
    assert payload.meta == {"index": 0, "seed": 9}
    assert payload.tensors["pixels"].shape == (64, 64, 1)
    usage = bench.out.outcomes[3].usage
    assert usage is not None
    assert (usage.images, usage.steps, usage.skipped_steps) == (1, 6, 3)
    assert bench.counters()["skipped_steps_total"] == 3


def test_layers_are_pictures_of_their_own() -> None:
    bench = alone(0, layers=3, n=2)
    metas = [it.meta for it in bench.payloads(0)]
    assert [(it["index"], it["layer"]) for it in metas] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    usage = bench.out.outcomes[0].usage
    assert usage is not None
    assert usage.images == 6


def test_previews_come_when_due_and_change_nothing() -> None:
    bench = alone(0, steps=10, previews=3, seed=5)
    previews = bench.previews(0)
    assert [it.meta["preview"] for it in previews] == [3, 6, 9]
    assert [it.meta["side"] for it in previews] == [256] * 3
    assert all(it.meta["index"] == 0 and it.meta["seed"] == 5 for it in previews)
    assert bench.counters()["previews_total"] == 3
    check_alone(bench, 0, steps=10, seed=5)
    assert len(bench.payloads(0)) == 4


def test_the_last_step_has_no_preview_since_the_picture_follows() -> None:
    assert [it.meta["preview"] for it in alone(0, steps=4, previews=2).previews(0)] == [2]


def test_a_preview_shows_the_picture_that_a_prediction_points_at() -> None:
    """The later the preview, the nearer to the picture; the latents themselves are noise for longer."""
    bench = alone(0, steps=20, previews=1)
    final = bench.pictures(0)[0][::8, ::8].astype(int)
    off = [np.abs(it.tensors["pixels"].astype(int) - final).mean() for it in bench.previews(0)]
    assert off[-1] < off[9] < off[0]


def test_a_preview_without_a_credit_is_left_out_and_the_picture_waits() -> None:
    bench = Bench()
    bench.admit(0, steps=6, previews=1)
    bench.out.left[0] = 2
    for _ in range(20):
        bench.step()
    assert [it.meta["preview"] for it in bench.previews(0)] == [1, 2]
    assert bench.pictures(0) == {}
    assert bench.engine.runnable
    assert bench.step() is False
    bench.out.left[0] = 1
    bench.run()
    check_alone(bench, 0, steps=6)


def test_progress_is_told_to_those_who_ask() -> None:
    bench = Bench()
    bench.admit(0, steps=3, n=2, progress=True)
    bench.admit(1, steps=3)
    bench.run()
    assert {it.key for it in bench.out.told} == {0}
    for index in range(2):
        assert [(it.step, it.steps) for it in bench.out.told if it.index == index] == [(1, 3), (2, 3), (3, 3)]


def test_many_pictures_leave_one_by_one_as_credits_come_back() -> None:
    bench = Bench()
    bench.toy.plan.together = True
    bench.admit(0, n=5, steps=2)
    bench.out.left[0] = 1
    for _ in range(30):
        bench.step()
    assert len(bench.payloads(0)) == 1
    for count in range(2, 6):
        bench.out.left[0] = 1
        while bench.step():
            pass
        assert len(bench.payloads(0)) == count
    assert bench.out.ended == [0]
    check_alone(bench, 0, n=5, steps=2)
    bench.check_empty()


def test_a_request_without_credits_holds_nobody_up() -> None:
    bench = Bench()
    bench.admit(0, steps=2)
    bench.admit(1, steps=8)
    bench.out.blocked.add(0)
    bench.run(lambda: 1 in bench.ends)
    assert bench.pictures(0) == {}
    bench.out.blocked.clear()
    bench.run()
    check_alone(bench, 0, steps=2)


@pytest.mark.parametrize("slices", [1, 4])
def test_a_decoding_that_has_begun_ends_without_a_credit(slices: int) -> None:
    bench = Bench()
    bench.toy.plan.decode_slices = slices
    bench.admit(0, n=2, steps=1)
    bench.out.left[0] = 1
    bench.run(lambda: len(bench.payloads(0)) == 1)
    while bench.step():
        pass
    assert len(bench.payloads(0)) == 1
    bench.out.left[0] = 5
    bench.run()
    check_alone(bench, 0, n=2, steps=1)

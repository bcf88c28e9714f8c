"""Pictures join and leave between steps: whatever they are beside, each one is what it is alone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from tests.worker.engines.diffusion.driver import Bench, alone, check_alone, sharing
from tests.worker.engines.diffusion.toy import Toy

from omni_actors.worker.engines.diffusion.cursor import Cursor

MIXED: dict[int, dict[str, Any]] = {
    0: {"steps": 9, "guidance": 4.0, "negative_prompt": "blurred"},
    1: {"steps": 3},
    2: {"steps": 1, "guidance": 7.5},
    3: {"steps": 12, "guidance": 1.0, "prompt": "a much longer prompt than the others have"},
    4: {"steps": 5, "n": 2},
}


def test_pictures_with_other_steps_and_guidance_share_forwards_from_the_step_at_which_they_come() -> None:
    bench = Bench(max_rows=64)
    for key, image in MIXED.items():
        bench.admit(key, **image)
        for _ in range(3):
            bench.step()
    bench.run()
    for key, image in MIXED.items():
        check_alone(bench, key, **image)
    counters = bench.counters()
    forwards = sharing(bench)["forward"]
    assert counters["forwards_total"] == len(forwards)
    assert counters["picture_steps_total"] == sum(forwards) == 9 + 3 + 1 + 12 + 2 * 5
    assert counters["rows_total"] == 2 * 9 + 3 + 2 * 1 + 12 + 2 * 5
    assert len(forwards) < 20, "apart from the time before the last one came, the longest picture's forwards do for all"
    assert max(forwards) >= 4
    bench.check_empty()


def test_pictures_leave_a_batch_when_their_steps_are_done() -> None:
    bench = Bench()
    for key, steps in enumerate((2, 4, 6)):
        bench.admit(key, steps=steps)
    bench.run(
        lambda: len(bench.toy.units) >= 3 and bench.toy.units[-1][0] == "encode" and bench.toy.units[-1][1][0][0] == 2
    )
    bench.toy.units.clear()
    bench.run()
    assert bench.out.ended == [0, 1, 2]
    assert sharing(bench)["forward"] == sorted(sharing(bench)["forward"], reverse=True)


def test_unlike_sizes_share_no_forward() -> None:
    bench = Bench()
    bench.admit(0, steps=4)
    bench.admit(1, steps=4, width=128)
    bench.run()
    assert set(sharing(bench)["forward"]) == {1}
    check_alone(bench, 0, steps=4)
    check_alone(bench, 1, steps=4, width=128)


class Experts(Toy):
    """Another expert from the middle of the steps on."""

    def batch_key(self, cursor: Cursor) -> Hashable:
        return (super().batch_key(cursor), cursor.step >= cursor.steps // 2)


def test_a_key_may_change_from_step_to_step() -> None:
    bench = Bench()
    bench.toy.__class__ = Experts
    bench.admit(0, steps=8)
    bench.admit(1, steps=4)
    bench.run()
    for what, shared in bench.toy.units:
        assert what != "forward" or len(shared) in (1, 2)
    early = [len(shared) for what, shared in bench.toy.units if what == "forward"]
    assert 2 in early
    assert sum(early) == 12
    check_alone(bench, 0, steps=8)
    check_alone(bench, 1, steps=4)


def test_a_forward_has_no_more_rows_than_allowed() -> None:
    bench = Bench(max_rows=5)
    for key in range(6):
        bench.admit(key, steps=4, guidance=3.0 if key % 2 else None)
    bench.run()
    for what, shared in bench.toy.units:
        if what == "forward":
            assert sum(2 if key % 2 else 1 for key, _ in shared) <= 5
    for key in range(6):
        check_alone(bench, key, steps=4, guidance=3.0 if key % 2 else None)


def test_a_picture_that_takes_more_rows_than_allowed_goes_alone() -> None:
    bench = Bench(max_rows=1)
    bench.admit(0, guidance=3.0)
    bench.admit(1, guidance=3.0)
    bench.run()
    assert set(sharing(bench)["forward"]) == {1}
    check_alone(bench, 0, guidance=3.0)


def test_newcomers_are_encoded_one_between_two_forwards() -> None:
    bench = Bench()
    bench.admit(0, steps=10)
    bench.run(lambda: bench.steps_of(0) == 2)
    for key in (1, 2, 3):
        bench.admit(key, steps=30)
    bench.toy.units.clear()
    bench.run(lambda: bench.steps_of(3) == 1)
    what = [name for name, _ in bench.toy.units]
    assert what == ["encode", "forward"] * 3
    assert [len(shared) for name, shared in bench.toy.units if name == "forward"] == [2, 3, 4]


def test_the_pictures_of_a_request_share_one_encoding_and_have_seeds_of_their_own() -> None:
    bench = Bench()
    bench.admit(7, n=3, seed=40, steps=5)
    bench.run()
    assert sharing(bench)["encode"] == [1]
    assert set(sharing(bench)["forward"]) == {3}
    pictures = bench.pictures(7)
    assert sorted(pictures) == [0, 1, 2]
    assert [it.meta["seed"] for it in bench.payloads(7)] == [40, 41, 42]
    usage = bench.out.outcomes[7].usage
    assert usage is not None
    assert (usage.images, usage.steps) == (3, 15)
    for index in range(3):
        # A picture is made again by its own seed.
        assert np.array_equal(alone(7, seed=40 + index, steps=5).pictures(7)[0], pictures[index])
    bench.check_empty()


def test_another_prompt_and_another_seed_make_another_picture() -> None:
    first = alone(0, prompt="a", seed=1).pictures(0)[0]
    assert not np.array_equal(first, alone(0, prompt="b", seed=1).pictures(0)[0])
    assert not np.array_equal(first, alone(0, prompt="a", seed=2).pictures(0)[0])


def test_encodings_and_decodings_may_be_shared_by_several_requests() -> None:
    bench = Bench()
    bench.toy.plan.together = True
    for key in range(3):
        bench.admit(key, width=64 if key < 2 else 128)
    bench.run()
    assert sharing(bench)["encode"] == [3]
    assert sorted(sharing(bench)["decode"]) == [1, 2]
    for key in range(3):
        check_alone(bench, key, width=64 if key < 2 else 128)


@pytest.mark.parametrize("planted", ["timestep", "scheduler", "branches"])
def test_faults_of_batching_are_seen(planted: str) -> None:
    """A neighbour's timestep, a scheduler for all, swapped branches: each makes another picture or none."""

    class Faulty(Toy):
        def begin(self, cursor: Cursor) -> None:
            super().begin(cursor)
            if planted == "scheduler":
                shared.append(cursor.scheduler)
                cursor.scheduler = shared[0]
            if planted == "branches":
                cursor.conditioning = cursor.conditioning[::-1]

        def predict(self, cursors: Any) -> Any:
            if planted == "timestep":
                mine = [it.timesteps for it in cursors]
                for cursor, other in zip(cursors, mine[1:] + mine[:1], strict=True):
                    cursor.timesteps = np.resize(other, cursor.steps)
            return super().predict(cursors)

    shared: list[Any] = []
    bench = Bench()
    bench.toy.__class__ = Faulty
    image: dict[str, Any] = {"guidance": 3.0, "negative_prompt": "blurred"}
    bench.admit(0, steps=4, **image)
    bench.admit(1, steps=6, **image)
    bench.run()
    with pytest.raises(AssertionError):
        check_alone(bench, 0, steps=4, **image)
        check_alone(bench, 1, steps=6, **image)

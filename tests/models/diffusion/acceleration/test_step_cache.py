"""Step caches: in a batch each picture decides by itself, as it does alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.hooks import FirstBlockCacheConfig, apply_first_block_cache
from diffusers.hooks.hooks import CacheContext, _set_cache_context
from tests.models.diffusion.acceleration.deep import BLOCKS, CASE, orders, write_deep
from tests.models.diffusion.orders import EIGHT, Order
from tests.models.diffusion.parity import TOLERANCE, Driven, Reference, Trace

from omni_actors.models.diffusion.acceleration.step_cache import StepCache
from omni_actors.models.diffusion.acceleration.step_cache.cache import STATE
from omni_actors.models.diffusion.acceleration.step_cache.memory import CursorCache
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work

pytestmark = [pytest.mark.slow, pytest.mark.torch]

THRESHOLD = 0.6
"""A threshold with which the tiny model skips some of its steps, and not all."""

MIXED = orders(
    {"cache": {"threshold": THRESHOLD}},
    {},
    {"cache": {"threshold": THRESHOLD, "first_blocks": 2, "last_blocks": 1}},
    {"cache": {"threshold": 1.2 * THRESHOLD, "warmup": 3, "max_skips": 2, "last_blocks": 2}},
)


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deep(tmp_path_factory.mktemp("deep") / "sd3", tiny_model("sd3"))


@pytest.fixture(scope="module")
def driven(folder: Path) -> Driven:
    return Driven(CASE, folder)


@pytest.fixture(scope="module")
def alone(driven: Driven) -> list[Trace]:
    return [driven.run([order])[0] for order in MIXED]


def skipped(trace: Trace) -> int:
    assert trace.outcome is not None
    assert trace.outcome.usage is not None, trace.error
    return trace.outcome.usage.skipped_steps


def differences(traces: Sequence[Trace], expected: Sequence[Trace]) -> float:
    return max(trace.differs(it) for trace, it in zip(traces, expected, strict=True))


def rows_of_last_block(driven: Driven) -> list[int]:
    """Return the list into which the rows of every call of the block before the last are written from now on."""
    rows: list[int] = []
    block = driven.adapter.model.transformer_blocks[BLOCKS - 3].block
    block.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["hidden_states"])), with_kwargs=True
    )
    return rows


def test_cached_and_uncached_pictures_in_one_batch_each_equal_themselves_alone(
    driven: Driven, alone: list[Trace]
) -> None:
    together = driven.run(MIXED)
    assert differences(together, alone) <= TOLERANCE
    assert [skipped(trace) for trace in together] == [skipped(trace) for trace in alone]
    assert driven.rows_per_forward > 4


def test_pictures_that_join_at_random_steps_equal_themselves_alone(driven: Driven, alone: list[Trace]) -> None:
    assert differences(driven.run(MIXED, random.Random(1)), alone) <= TOLERANCE


def test_pictures_with_a_cache_skip_steps_and_others_do_not(alone: list[Trace]) -> None:
    for order, trace in zip(MIXED, alone, strict=True):
        assert 0 < skipped(trace) < order.steps if order.fields else skipped(trace) == 0


def test_rows_that_skip_leave_the_blocks_between(driven: Driven) -> None:
    rows = rows_of_last_block(driven)
    driven.run([MIXED[0], MIXED[1]])
    assert {2, 4} <= set(rows) <= {2, 3, 4}  # both pictures with two branches, or the one without a cache alone
    rows.clear()
    (trace,) = driven.run([MIXED[0]])
    assert sum(rows) < 2 * MIXED[0].steps
    assert len(rows) >= MIXED[0].steps - skipped(trace)


def test_a_cache_changes_the_picture_and_a_threshold_of_zero_does_not(driven: Driven, alone: list[Trace]) -> None:
    plain, zero = orders({})[0], orders({"cache": {"threshold": 0}})[0]
    (uncached,), (off,) = driven.run([plain]), driven.run([zero])
    assert off.differs(uncached) == 0
    assert skipped(off) == 0
    assert alone[0].differs(uncached) > 10 * TOLERANCE


def test_one_row_equals_the_first_block_cache_of_diffusers(folder: Path, driven: Driven) -> None:
    one_branch = [Order("a green fish", 5, 12, 1.0), Order("old boat", 9, 8, 1.0)]
    for order in one_branch:
        reference = Reference(CASE, folder)
        transformer = reference._pipe.transformer
        returning_text(transformer.transformer_blocks[-1])
        apply_first_block_cache(transformer, FirstBlockCacheConfig(threshold=THRESHOLD))
        _set_cache_context(transformer, CacheContext("only"))
        cached = Order(order.prompt, order.seed, order.steps, 1.0, fields={"cache": {"threshold": THRESHOLD}})
        (trace,) = driven.run([cached])
        assert trace.differs(reference.trace(order)) <= TOLERANCE
        assert skipped(trace) > 0


def returning_text(block: Any) -> None:
    """Let Stable Diffusion 3's last block return the text, without which diffusers' hook fails; nothing reads it."""
    forward = block.forward

    def with_text(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return arguments["encoder_hidden_states"], forward(**arguments)[1]

    block.forward = with_text


def test_state_that_pictures_share_is_found(driven: Driven, alone: list[Trace]) -> None:
    with shared_state(driven):
        together = driven.run(MIXED)
    assert differences(together, alone) > 10 * TOLERANCE


@contextmanager
def shared_state(driven: Driven) -> Iterator[None]:
    """Let all pictures with a cache share what they remember."""
    cache: StepCache = driven.adapter.acceleration.cache
    commit, shared = cache.commit, {}

    def planted(cursor: Any) -> None:
        commit(cursor)
        if (own := cursor.state.get(STATE)) is not None:
            shared.update(own.branches)
            own.branches = shared

    cache.commit = planted  # type: ignore[method-assign]
    yield
    cache.commit = commit  # type: ignore[method-assign]


def test_a_forward_changes_no_cursor_until_its_step_is_done(driven: Driven) -> None:
    adapter = driven.adapter
    (cursor,) = adapter.open(Work(7, "twice", {}), MIXED[0].section())
    with torch.inference_mode():
        *_, (cursor.conditioning,) = adapter.encode([cursor])
    adapter.begin(cursor)
    for _ in range(6):
        cache: CursorCache = cursor.state[STATE]
        before, counted = dict(cache.branches), cursor.skipped
        (first,), (second,) = adapter.predict([cursor]), adapter.predict([cursor])
        assert torch.equal(first, second)
        assert dict(cache.branches) == before
        assert cursor.skipped == counted
        adapter.advance(cursor, second)
        cursor.step += 1
    assert 0 < cursor.skipped < 6
    adapter.close(cursor)
    assert STATE not in cursor.state


def test_the_footprint_counts_what_is_remembered(driven: Driven) -> None:
    adapter = driven.adapter
    plain = adapter.open(Work(8, "plain", {}), ImageGeneration(prompt="a", steps=4))[0]
    for number in (0, 2, 3):
        (cursor,) = adapter.open(Work(9, "cached", {}), MIXED[number].section())
        with torch.inference_mode():
            *_, (cursor.conditioning,) = adapter.encode([cursor])
        adapter.begin(cursor)
        (prediction,) = adapter.predict([cursor])
        adapter.advance(cursor, prediction)
        held = sum(memory.nbytes for memory in cursor.state[STATE].branches.values())
        assert 0 < held <= cursor.footprint.state - plain.footprint.state
        adapter.close(cursor)


@pytest.mark.parametrize(
    ("cache", "says"),
    [
        ({"treshold": 0.1}, "no setting 'treshold'"),
        ({"threshold": -1}, "at least 0"),
        ({"threshold": float("nan")}, "at least 0"),
        ({"threshold": 0.1, "first_blocks": 1.5}, "whole number"),
        ({"threshold": 0.1, "first_blocks": 0}, "at least 1"),
        ({"threshold": 0.1, "first_blocks": 4, "last_blocks": 2}, "6 blocks"),
    ],
)
def test_wrong_settings_are_refused(driven: Driven, cache: dict[str, float], says: str) -> None:
    with pytest.raises(OmniError) as refused:
        driven.adapter.open(Work(1, "wrong", {}), ImageGeneration(prompt="a", cache=cache))
    assert refused.value.info.status == 400
    assert refused.value.info.param == "cache"
    assert says in refused.value.info.message


def test_a_stages_settings_hold_for_requests_that_name_none(folder: Path, alone: list[Trace]) -> None:
    usual = Driven(CASE, folder, cache_threshold=THRESHOLD)
    plain, off = orders({})[0], orders({"cache": {"threshold": 0}})[0]
    (cached,), (uncached,) = usual.run([plain]), usual.run([off])
    assert cached.differs(alone[0]) <= TOLERANCE
    assert skipped(uncached) == 0


def test_skipped_rows_are_counted(driven: Driven) -> None:
    before = driven.engine.counters()
    assert EIGHT[4].guidance == 1.0
    (trace,) = driven.run([MIXED[4]])  # one branch, so one row for each step
    after = driven.engine.counters()
    name = "step_cache_skipped_rows_total"
    assert after[name] - before[name] == skipped(trace) == after["skipped_steps_total"] - before["skipped_steps_total"]

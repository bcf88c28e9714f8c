"""The paged cache's books: nothing is given twice, nothing is lost, and what is found is what was published."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.worker.engines.autoregressive.cache import BlockPool, OutOfBlocks, block_hash
from omni_actors.worker.engines.autoregressive.scheduler import Scheduler
from omni_actors.worker.engines.autoregressive.sequence import Sequence


def always(key: int) -> bool:
    return True


def test_a_blocks_name_depends_on_all_before_it() -> None:
    first = block_hash(b"", [1, 2])
    assert first == block_hash(b"", (1, 2))
    assert first != block_hash(b"", [2, 1])
    assert block_hash(first, [3, 4]) != block_hash(block_hash(b"", [1, 3]), [3, 4])
    assert block_hash(b"picture", [1, 2]) != first


def test_allocation_is_all_or_none() -> None:
    pool = BlockPool(3, 4)
    pool.allocate(2)
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)
    assert pool.available == 1


def test_the_longest_unused_block_is_evicted_first() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.allocate(3)
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.publish(block, name)
        pool.release([block])
    pool.release(pool.find([b"a"]))  # used just now
    pool.allocate(1)
    assert not pool.find([b"b"])
    assert pool.find([b"a"]) == blocks[:1]
    assert pool.find([b"c"]) == blocks[2:]


def test_of_a_sequence_the_end_is_evicted_before_the_beginning() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.allocate(3)
    for block, name in zip(blocks, (b"1", b"2", b"3"), strict=True):
        pool.publish(block, name)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.find([b"1", b"2", b"3"]) == blocks[:2]


def test_a_block_in_use_is_never_evicted() -> None:
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1)
    pool.publish(block, b"x")
    pool.allocate(1)
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    assert pool.find([b"x"]) == [block]


def test_a_second_release_is_an_error() -> None:
    pool = BlockPool(2, 4)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="more often"):
        pool.release(blocks)


def test_without_prefix_cache_nothing_is_found() -> None:
    pool = BlockPool(2, 4, prefix_cache=False)
    pool.publish(pool.allocate(1)[0], b"x")
    assert not pool.find([b"x"])


def test_the_youngest_is_preempted_and_comes_back_before_later_arrivals() -> None:
    pool = BlockPool(4, 4, prefix_cache=False)
    scheduler = Scheduler(pool, max_running=8, step_tokens=64)
    old, young, later = (Sequence(i, 0, i, [0] * 7, 7) for i in range(3))
    for sequence in (old, young, later):
        scheduler.add(sequence)
    for chunk in scheduler.schedule(always):
        chunk.sequence.advance(chunk.count, pool)
    assert scheduler.running == [old, young]
    for _ in range(2):
        old.tokens.append(0)
        young.tokens.append(0)
        for chunk in scheduler.schedule(always):
            chunk.sequence.advance(chunk.count, pool)
    assert scheduler.running == [old]
    assert list(scheduler.waiting) == [young, later]
    assert (len(young.tokens), young.computed, young.blocks) == (9, 0, [])
    assert scheduler.preemptions == 1


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_books_balance_whatever_happens(rng: random.Random) -> None:
    pool = BlockPool(rng.randrange(6, 30), rng.choice([2, 4, 8]), prefix_cache=rng.random() < 0.7)
    scheduler = Scheduler(pool, max_running=rng.randrange(1, 6), step_tokens=rng.randrange(1, 40))
    longest = pool.total * pool.block_size
    alive: dict[int, Sequence] = {}
    for key in range(60):
        if rng.random() < 0.5:
            length = rng.randrange(1, longest)
            alive[key] = Sequence(key, 0, key, [rng.randrange(2) for _ in range(length)], length)
            scheduler.add(alive[key])
        blocked = {k for k in alive if rng.random() < 0.2}
        chunks = scheduler.schedule(lambda k, blocked=blocked: k not in blocked)  # type: ignore[misc]
        assert len({c.sequence.key for c in chunks}) == len(chunks)
        assert sum(c.count for c in chunks) <= scheduler.step_tokens
        for chunk in chunks:
            sequence = chunk.sequence
            assert sequence.key not in blocked
            assert chunk.start == sequence.computed
            assert len(sequence.blocks) * pool.block_size >= chunk.start + chunk.count
            sequence.advance(chunk.count, pool)
            if chunk.sample and len(sequence.tokens) < longest:
                sequence.tokens.append(rng.randrange(2))
            elif chunk.sample:
                scheduler.remove(alive.pop(sequence.key))
        if alive and rng.random() < 0.2:
            scheduler.remove(alive.pop(rng.choice(list(alive))))
        held = Counter(block for sequence in alive.values() for block in sequence.blocks)
        assert all(len(set(s.blocks)) == len(s.blocks) for s in alive.values())
        assert pool.used == len(held)
        assert sorted(held.elements()) == sorted(b for b in range(pool.total) for _ in range(pool._refs[b]))
    for sequence in alive.values():
        scheduler.remove(sequence)
    assert pool.used == 0
    assert pool.available == pool.total

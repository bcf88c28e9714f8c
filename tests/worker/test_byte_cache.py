from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_actors.worker.byte_cache import ByteCache


def test_the_least_recently_used_goes_first() -> None:
    cache: ByteCache[str, int] = ByteCache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (1, 3)
    assert (cache.bytes, cache.hits, cache.misses, cache.evictions) == (8, 3, 1, 1)


def test_a_value_may_grow_and_one_too_large_is_not_kept() -> None:
    cache: ByteCache[str, int] = ByteCache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    cache.put("a", 1, 7)
    assert cache.get("b") is None
    cache.put("a", 1, 11)
    assert cache.get("a") is None
    assert (cache.bytes, len(cache)) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12))))
def test_the_cache_never_exceeds_its_bytes(puts: list[tuple[int, int]]) -> None:
    cache: ByteCache[int, int] = ByteCache(20)
    sizes: dict[int, int] = {}
    for key, size in puts:
        cache.put(key, key, size)
        sizes[key] = size
        assert cache.bytes <= 20
        assert cache.get(key) == key
    assert cache.bytes == sum(size for key, size in sizes.items() if cache.get(key) is not None)

"""The memory of answers stays within its bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from affinityd.daemon.state.cache import Cache


def test_the_least_recently_used_is_forgotten_first_and_what_is_too_heavy_costs_all() -> None:
    cache: Cache[str, int] = Cache(limit=30)
    for key in "abc":
        cache.put(key, ord(key), 10)
    assert cache.get("a") == ord("a")
    cache.put("d", ord("d"), 10)
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"]
    cache.put("e", 1, 31)
    assert [key for key in "acde" if cache.get(key)] == []
    cache.put("f", 3, 30)
    assert cache.get("f") == 3


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40))))
def test_what_is_kept_never_weighs_more_than_the_limit(puts: list[tuple[int, int]]) -> None:
    cache: Cache[int, int] = Cache(limit=100)
    weights: dict[int, int] = {}
    for key, weight in puts:
        cache.put(key, weight, weight)
        weights[key] = weight
        kept = {key: weights[key] for key in weights if cache.get(key) is not None}
        assert sum(kept.values()) <= 100
        assert all(cache.get(key) == weights[key] for key in kept)

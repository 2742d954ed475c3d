"""The memory of answers stays within its bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from affinityd.daemon.state.cache import Cache


def test_the_least_recently_used_is_forgotten_first() -> None:
    cache: Cache[str, int] = Cache(limit=30)
    for key in "abc":
        cache.put(key, ord(key), 10)
    assert cache.get("a") == ord("a")
    cache.put("d", ord("d"), 10)
    assert [key for key in "abcd" if cache.get(key)] == ["a", "c", "d"]


def test_what_is_heavier_than_the_limit_is_not_kept_and_costs_the_others() -> None:
    cache: Cache[str, int] = Cache(limit=30)
    cache.put("a", 1, 10)
    cache.put("b", 2, 31)
    assert (cache.get("a"), cache.get("b")) == (None, None)
    cache.put("c", 3, 30)
    assert cache.get("c") == 3


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

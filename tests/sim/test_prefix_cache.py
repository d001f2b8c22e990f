"""The prefix cache compared with a simple model of one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.sim.prefix_cache import PrefixCache
from gateway.sim.tokens import pack

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(st.integers(1, 4), st.lists(PROMPTS, max_size=20), PROMPTS)
def test_match_is_the_longest_cached_prefix_in_full_pages(
    page: int, known: list[list[int]], prompt: list[int]
) -> None:
    """Never the complete prompt: one token is always left to compute."""
    cache = PrefixCache(page, 1_000_000)
    for one in known:
        cache.insert(pack(one))
    limit = (len(prompt) - 1) // page * page
    expected = 0
    for one in known:
        shared = 0
        while shared < min(len(one), len(prompt)) and one[shared] == prompt[shared]:
            shared += 1
        complete = min(shared, len(one) // page * page) // page * page
        expected = max(expected, min(complete, limit))
    assert cache.match(pack(prompt)) == expected


@given(st.lists(PROMPTS, max_size=30))
def test_size_counts_each_shared_token_once(known: list[list[int]]) -> None:
    cache = PrefixCache(1, 1_000_000)
    for one in known:
        cache.insert(pack(one))
    prefixes = {tuple(one[: end + 1]) for one in known for end in range(len(one))}
    assert cache.tokens == len(prefixes)


def test_oldest_use_goes_first_when_it_is_full() -> None:
    """Recently used prefixes stay, and the size stays within the capacity."""
    cache = PrefixCache(1, 100)
    for first in range(10):
        cache.insert(pack([first] * 10))
        cache.match(pack([0] * 10))
    cache.insert(pack([50] * 10))
    assert cache.tokens <= 100
    assert cache.match(pack([0] * 10)) == 9
    assert cache.match(pack([1] * 10)) == 0


def test_cache_of_size_0_caches_nothing() -> None:
    cache = PrefixCache(1, 0)
    cache.insert(pack([1, 2, 3]))
    assert cache.match(pack([1, 2, 3])) == 0

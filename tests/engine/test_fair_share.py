"""Shards are shared out completely and evenly, whichever process counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relaybox.outbox.shards import fair_share


@given(st.integers(1, 1024), st.sets(st.integers(1, 10**6), min_size=1, max_size=40))
def test_shares_add_up_and_differ_by_at_most_one(shards: int, instances: set[int]) -> None:
    shares = [fair_share(shards, list(instances), me) for me in instances]
    assert sum(shares) == shards
    assert max(shares) - min(shares) <= 1


@given(st.integers(1, 1024), st.sets(st.integers(1, 10**6), max_size=40), st.integers(1, 10**6))
def test_i_count_even_when_the_list_does_not_have_me_yet(shards: int, others: set[int], me: int) -> None:
    assert fair_share(shards, list(others), me) == fair_share(shards, [*others, me], me)


def test_the_oldest_get_the_odd_ones() -> None:
    assert [fair_share(16, [30, 10, 20], me) for me in (30, 10, 20)] == [6, 5, 5]
    assert fair_share(2, [1, 2, 3], 3) == 0

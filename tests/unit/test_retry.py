"""Backoff stays in its range for any number of attempts (D-11, FL-65)."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaybox import ExponentialBackoff
from relaybox.errors import ConfigError

SECOND = timedelta(seconds=1)
durations = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=2))


@given(attempts=st.integers(1, 1000), base=durations, more=durations, seed=st.integers())
def test_bounds(attempts: int, base: timedelta, more: timedelta, seed: int) -> None:
    maximum = base + more
    delay = ExponentialBackoff(base, maximum, rng=random.Random(seed)).delay(attempts)
    doubled = base.total_seconds() * 2.0 ** min(attempts - 1, 60)
    slack = timedelta(microseconds=1)  # timedelta rounds
    assert min(timedelta(seconds=min(doubled * 0.5, 1e7)), maximum) - slack <= delay <= maximum
    if doubled * 1.5 < maximum.total_seconds():
        assert delay <= timedelta(seconds=doubled * 1.5) + slack


@given(st.integers(1, 1000))
def test_doubles_without_jitter_up_to_the_cap(attempts: int) -> None:
    policy = ExponentialBackoff(SECOND, 60 * SECOND, jitter=(1.0, 1.0))
    assert policy.delay(attempts) == min(SECOND * 2 ** min(attempts - 1, 6), 60 * SECOND)


def test_defaults_and_jitter_spread() -> None:
    policy = ExponentialBackoff(rng=random.Random(1))
    first = [policy.delay(1).total_seconds() for _ in range(500)]
    assert 0.1 <= min(first) < 0.12
    assert 0.28 < max(first) <= 0.3
    assert max(policy.delay(1000) for _ in range(500)) == timedelta(seconds=60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": timedelta(0)}, "base to be a positive duration, got 0:00:00"),
        ({"base": SECOND, "maximum": SECOND / 2}, "at least the base"),
        ({"jitter": (0.0, 1.0)}, "jitter"),
        ({"jitter": (1.5, 0.5)}, "jitter"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExponentialBackoff(**arguments)  # type: ignore[arg-type]


def test_attempts_start_at_one() -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        ExponentialBackoff().delay(0)

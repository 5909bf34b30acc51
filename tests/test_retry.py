"""Pauses stay in their range for any number of attempts."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaybox import Retry
from relaybox.errors import ConfigError

SECOND = timedelta(seconds=1)
durations = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=2))


@given(attempts=st.integers(1, 1000), base=durations, more=durations, jitter=st.floats(0, 0.99))
def test_bounds(attempts: int, base: timedelta, more: timedelta, jitter: float) -> None:
    longest = base + more
    pause = Retry(base=base, max=longest, jitter=jitter).pause(attempts)
    doubled = base.total_seconds() * 2.0 ** min(attempts - 1, 60)
    slack = timedelta(microseconds=1)  # timedelta rounds
    assert min(timedelta(seconds=min(doubled * (1 - jitter), 1e7)), longest) - slack <= pause <= longest
    if doubled * (1 + jitter) < longest.total_seconds():
        assert pause <= timedelta(seconds=doubled * (1 + jitter)) + slack


@given(st.integers(1, 1000))
def test_doubles_without_jitter_up_to_the_cap(attempts: int) -> None:
    retry = Retry(base="1s", max="1m", jitter=0)
    assert retry.pause(attempts) == min(SECOND * 2 ** min(attempts - 1, 6), 60 * SECOND)


def test_defaults_and_jitter_spread() -> None:
    retry = Retry()
    first = [retry.pause(1).total_seconds() for _ in range(2000)]
    assert 0.1 <= min(first) < 0.12
    assert 0.28 < max(first) <= 0.3
    assert max(retry.pause(1000) for _ in range(500)) == timedelta(seconds=60)


@pytest.mark.parametrize("given", [timedelta(seconds=90), 90, 90.0, "90s", "1m30s", "PT1M30S"])
def test_durations_as_people_write_them_are_timedeltas_when_read(given: Any) -> None:
    retry = Retry(base=given, max=given)
    assert (retry.base, retry.max) == (timedelta(seconds=90), timedelta(seconds=90))
    assert retry == Retry(base="90s", max="90s")


def test_a_function_decides_instead() -> None:
    assert [Retry(delay=lambda n: f"{n}m").pause(n) for n in (1, 5)] == [60 * SECOND, 300 * SECOND]
    with pytest.raises(ConfigError, match=r"what retry\.delay returns to be a duration .*, got 'soon'"):
        Retry(delay=lambda n: "soon").pause(1)


def test_none_is_for_ever() -> None:
    assert (Retry(attempts=None).limit, Retry(attempts=3).limit) == (math.inf, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": timedelta(0)}, r"retry\.base to be a positive duration, got 0:00:00"),
        ({"base": "soon"}, r"retry\.base to be a duration such as .*, got 'soon'"),
        ({"base": None}, r"retry\.base to be a duration such as .*, got None"),
        ({"base": "1s", "max": "500ms"}, r"retry\.max to be at least retry\.base 0:00:01, got 0:00:00\.5"),
        ({"jitter": 1}, r"retry\.jitter"),
        ({"jitter": -0.1}, r"retry\.jitter"),
        ({"jitter": "much"}, r"retry\.jitter"),
        ({"jitter": True}, r"retry\.jitter"),
        ({"attempts": 0}, r"retry\.attempts to be a positive int or None, got 0"),
        ({"attempts": True}, r"retry\.attempts"),
        ({"attempts": 2.5}, r"retry\.attempts"),
        ({"delay": 5}, r"retry\.delay to be a function of the attempt, got 5"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Retry(**arguments)


def test_attempts_start_at_one() -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        Retry().pause(0)

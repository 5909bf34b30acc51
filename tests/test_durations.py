"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaybox.durations import format_duration, parse_duration
from relaybox.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("720h", 2_592_000),
        ("1h30m", 5_400),
        ("250ms", 0.25),
        ("10us", 0.00001),
        ("2d", 172_800),
        ("1w", 604_800),
        (" 1.5S ", 1.5),
        ("0", 0),
        ("PT5M", 300),
        ("pt1h0.5s", 3600.5),
        ("P1DT2H", 93_600),
        ("P2W", 1_209_600),
        (5, 5),
        (0.25, 0.25),
        (timedelta(days=1), 86_400),
    ],
)
def test_parse(text: str | float | timedelta, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "5 m", "5x", "-5s", "1h 30m", "P", "PT", "1h30", "s", "--5", True, None, "1e3s", "nan", "90", "0.5"],
)
def test_refuses_and_names_the_value(text: object) -> None:
    with pytest.raises(ConfigError, match="expected lease to be a duration") as refused:
        parse_duration(text, "lease")  # type: ignore[arg-type]
    assert repr(text) in str(refused.value)


def test_a_number_in_text_may_mean_days() -> None:
    with pytest.raises(ConfigError, match="got '7' without a unit"):
        parse_duration("7", "retention")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300])
def test_numbers_that_are_no_duration(number: float) -> None:
    with pytest.raises(ConfigError, match="expected lease to be a duration"):
        parse_duration(number, "lease")


def test_text_too_large_for_a_duration() -> None:
    with pytest.raises(ConfigError, match="expected lease to be a duration"):
        parse_duration("9" * 400, "lease")
    with pytest.raises(ConfigError, match="expected lease to be a duration"):
        parse_duration("P" + "9" * 20 + "W", "lease")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(30, "30s"), (90, "90s"), (120, "2m"), (7200, "2h"), (86_400, "1d"), (0.25, "250ms"), (1000.001, "1000001ms")],
)
def test_format(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=10_000)))
def test_formatted_durations_parse(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value

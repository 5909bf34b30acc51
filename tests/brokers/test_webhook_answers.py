"""What a status and a Retry-After mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from relaybox.brokers.webhook.answers import answer_to, parse_retry_after
from relaybox.errors import BrokerUnavailable, DeliveryError, Reject, RetryLater

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)

KINDS: dict[int, type] = {
    **dict.fromkeys((410, 413, 415, 431), Reject),
    **dict.fromkeys((408, 425, 429, 502, 503, 504, *range(520, 528)), BrokerUnavailable),
}


@pytest.mark.parametrize("status", [*range(100, 600), 999])
def test_the_table(status: int) -> None:
    answer = answer_to(status, None, "crm", "crm")
    if 200 <= status < 300:
        assert answer is None
    else:
        assert type(answer) is KINDS.get(status, DeliveryError)
        assert f"crm answered {status}" in str(answer)


def test_pauses_name_their_destination_only_to_the_relay() -> None:
    answer = answer_to(503, HOUR, "https://crm.example", "https://crm.example/token")
    assert isinstance(answer, BrokerUnavailable)
    assert (answer.destination, answer.retry_after) == ("https://crm.example/token", HOUR)
    assert "token" not in str(answer)


def test_retry_after_is_obeyed_whatever_the_status() -> None:
    for status in (301, 404, 500):
        answer = answer_to(status, HOUR, "crm", "crm")
        assert isinstance(answer, RetryLater)
        assert answer.delay == HOUR
    assert type(answer_to(413, HOUR, "crm", "crm")) is Reject


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1", 1),
        ("120", 120),
        (" 120 ", 120),
        ("0000000000000120", 120),
        ("3600", 3600),
        ("3601", 3600),
        ("999999999999", 3600),
        ("9" * 5000, 3600),
        ("Tue, 01 Jan 2030 12:05:00 GMT", 300),
        ("Tue, 01 Jan 2030 12:05:00 -0000", 300),
        ("Tue, 01 Jan 2030 13:05:00 +0100", 300),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
    ],
)
def test_retry_after(value: str, seconds: int) -> None:
    assert parse_retry_after(value, NOW, HOUR) == timedelta(seconds=seconds)


EMPTY = (None, "", "0", "00", "-5", "1.5", "1e3", "soon", "nan", "inf", "٣", "\x00", "0x10", "Tue, 01 Jan")
PAST = ("Tue, 01 Jan 2030 11:00:00 GMT", "Tue, 99 Jan 2030 12:00:00 GMT", "Tue, 01 Jan 99999 12:00:00 GMT")


@pytest.mark.parametrize("value", [*EMPTY, *PAST])
def test_retry_after_that_says_nothing(value: str | None) -> None:
    """Zero too: an endpoint must not be able to make us hammer it."""
    assert parse_retry_after(value, NOW, HOUR) is None

"""The table in decide.py's docstring, cell by cell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from relaybox.engine.decide import decide, describe
from relaybox.errors import Reject, RetryLater, Undecodable, Unroutable
from relaybox.outcome import Dead, Outcome, RetryAt
from relaybox.retry import Retry

MINUTES = Retry(attempts=3, delay=lambda attempts: f"{attempts}m")


def outcome(error: BaseException, attempts: int, *, for_ever: bool = False) -> Outcome:
    return decide(error, attempts, MINUTES, for_ever=for_ever)


@pytest.mark.parametrize("kind", [Unroutable, Undecodable, Reject])
@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("for_ever", [False, True])
def test_what_can_never_work_is_dead_at_once(kind: type[Exception], attempts: int, for_ever: bool) -> None:
    assert outcome(kind("why"), attempts, for_ever=for_ever) == Dead(f"{kind.__name__}: why")


@pytest.mark.parametrize(
    ("error", "attempts", "for_ever", "expected"),
    [
        (ValueError("x"), 1, False, RetryAt(timedelta(minutes=1), "ValueError: x")),
        (ValueError("x"), 2, False, RetryAt(timedelta(minutes=2), "ValueError: x")),
        (ValueError("x"), 3, False, Dead("ValueError: x")),
        (ValueError("x"), 9, False, Dead("ValueError: x")),
        (ValueError("x"), 3, True, RetryAt(timedelta(minutes=3), "ValueError: x")),
        (RetryLater(timedelta(hours=1), "busy"), 1, False, RetryAt(timedelta(hours=1), "RetryLater: busy")),
        (RetryLater("1h", "busy"), 1, False, RetryAt(timedelta(hours=1), "RetryLater: busy")),
        (RetryLater(90, "busy"), 1, False, RetryAt(timedelta(seconds=90), "RetryLater: busy")),
        (RetryLater(timedelta(hours=1), "busy"), 3, False, Dead("RetryLater: busy")),
        (RetryLater(timedelta(hours=1), "busy"), 3, True, RetryAt(timedelta(hours=1), "RetryLater: busy")),
    ],
)
def test_the_rest_is_tried_again(error: Exception, attempts: int, for_ever: bool, expected: Outcome) -> None:
    assert outcome(error, attempts, for_ever=for_ever) == expected


def test_without_a_limit_nothing_dies_of_its_attempts() -> None:
    retry = Retry(attempts=None, base=1, max=1, jitter=0)
    assert decide(ValueError("x"), 10**6, retry) == RetryAt(timedelta(seconds=1), "ValueError: x")


def test_a_delay_that_fails_does_not_stop_a_worker() -> None:
    retry = Retry(delay=lambda attempts: 1 / 0)
    decided = decide(ValueError("x"), 1, retry)
    assert isinstance(decided, RetryAt)
    assert timedelta(0) < decided.delay < timedelta(seconds=1)


def test_describe() -> None:
    assert describe(ValueError()) == "ValueError"
    assert describe(ValueError("why")) == "ValueError: why"

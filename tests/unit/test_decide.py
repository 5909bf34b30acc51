"""The table in decide.py's docstring, cell by cell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from relaybox.engine.decide import decide, describe
from relaybox.errors import Reject, RetryLater, Undecodable, Unroutable
from relaybox.outcome import Dead, Outcome, RetryAt


class Minutes:
    def delay(self, attempts: int) -> timedelta:
        return timedelta(minutes=attempts)


def outcome(error: BaseException, attempts: int, *, for_ever: bool = False) -> Outcome:
    return decide(error, attempts, max_attempts=3, retry=Minutes(), retry_for_ever=for_ever)


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
        (RetryLater(timedelta(hours=1), "busy"), 3, False, Dead("RetryLater: busy")),
        (RetryLater(timedelta(hours=1), "busy"), 3, True, RetryAt(timedelta(hours=1), "RetryLater: busy")),
    ],
)
def test_the_rest_is_tried_again(error: Exception, attempts: int, for_ever: bool, expected: Outcome) -> None:
    assert outcome(error, attempts, for_ever=for_ever) == expected


def test_describe() -> None:
    assert describe(ValueError()) == "ValueError"
    assert describe(ValueError("why")) == "ValueError: why"

"""From an error to an outcome: the retry and dead-letter rules, pure.

error                       attempts left      none left
Unroutable, Undecodable,
Reject                      Dead               Dead
RetryLater(delay)           RetryAt(delay)     Dead  (ordered block: RetryAt(delay))
any other                   RetryAt(backoff)   Dead  (ordered block: RetryAt(backoff))
"""

from __future__ import annotations

from ..errors import Reject, RetryLater, Undecodable, Unroutable
from ..outcome import Dead, Outcome, RetryAt
from ..retry import RetryPolicy


def describe(error: BaseException) -> str:
    """The text kept in last_error: the type always, the message when there is one."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def decide(
    error: BaseException,
    attempts: int,
    *,
    max_attempts: int,
    retry: RetryPolicy,
    retry_for_ever: bool = False,
) -> Outcome:
    if isinstance(error, (Unroutable, Undecodable, Reject)):
        return Dead(describe(error))
    if attempts >= max_attempts and not retry_for_ever:
        return Dead(describe(error))
    if isinstance(error, RetryLater):
        return RetryAt(error.delay, describe(error))
    return RetryAt(retry.delay(attempts), describe(error))

"""From an error to an outcome: the retry and dead-letter rules, pure.

error                       attempts left      none left
Unroutable, Undecodable,
Reject                      Dead               Dead
BrokerUnavailable           RetryAt, the attempt not counted, for ever
RetryLater(delay)           RetryAt(delay)     Dead  (ordered block: RetryAt(delay))
any other                   RetryAt(backoff)   Dead  (ordered block: RetryAt(backoff))

Under block, what fails beyond the limit is tried ever more rarely, whatever delay is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from ..errors import BrokerUnavailable, Reject, RetryLater, Undecodable, Unroutable
from ..outcome import Dead, Outcome, RetryAt
from ..retry import Retry

log = logging.getLogger("relaybox")

LONGEST = timedelta(days=3650)  # later than that no database can be sure to store
BEYOND = 60  # seconds between two attempts beyond the limit, in the end
_FALLBACK = Retry()


def describe(error: BaseException) -> str:
    """The text kept in last_error: the type always, the message when there is one."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return name
    return f"{name}: {text}" if text else name


def decide(error: BaseException, attempts: int, retry: Retry, *, for_ever: bool = False) -> Outcome:
    """`for_ever`: what keeps failing keeps its key waiting."""
    if isinstance(error, (Unroutable, Undecodable, Reject)):
        return Dead(describe(error))
    if isinstance(error, BrokerUnavailable):
        pause = _pause(lambda: error.retry_after or retry.pause(attempts), attempts)
        return RetryAt(pause, describe(error), counted=False)
    if attempts >= retry.limit and not for_ever:
        return Dead(describe(error))
    wish = error.delay if isinstance(error, RetryLater) else None
    pause = _pause(lambda: retry.pause(attempts) if wish is None else wish, attempts)
    if attempts > retry.limit:
        pause = max(pause, timedelta(seconds=min(2.0 ** min(attempts - retry.limit - 1, 10), BEYOND)))
    return RetryAt(pause, describe(error))


def _pause(ask: Callable[[], timedelta], attempts: int) -> timedelta:
    """What the listener or `Retry.delay` asks for, within what can be stored. One that fails must not stop a worker."""
    try:
        return min(max(ask(), timedelta(0)), LONGEST)
    except Exception:
        log.exception("no delay could be had for a retry; the default one is used")
        return _FALLBACK.pause(max(attempts, 1))

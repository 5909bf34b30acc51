"""What a failing handler leaves in the log: a warning with its stack, without a payload, and not a thousand times.

The text of an exception is left out, because handlers put values into it; it is kept with the event. A DeliveryError
itself is what a sink answers, and says why: "the endpoint answered 401". The same failure
(type of event, type of error, place in the code) is written once a minute, with the number of those between.
"""

from __future__ import annotations

import concurrent.futures
import logging
import traceback
from pathlib import Path

from ..clock import Clock
from ..errors import BrokerUnavailable, DeliveryError, Reject, RetryLater, Undecodable, Unroutable
from ..event import Event
from ..printable import stack_of

log = logging.getLogger("relaybox")

EVERY = 60.0  # seconds between two lines about the same failure
DIFFERENT = 200  # failures that are told apart
# The handler's own word, which is told by its outcome; and an outage, of which the circuit speaks.
TOLD = (RetryLater, Reject, Unroutable, Undecodable, BrokerUnavailable)
OURS = (str(Path(__file__).parent.parent), str(Path(concurrent.futures.__file__).parent))  # what calls handlers


class FailureLog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}  # when it was written last, and how many since

    def __call__(self, event: Event, attempts: int, error: BaseException) -> None:
        if isinstance(error, TOLD):
            return
        stack = traceback.extract_tb(error.__traceback__)
        last = stack[-1] if stack else None
        failure = (event.type, type(error).__name__, f"{last.filename}:{last.lineno}" if last else "")
        now = self._clock.monotonic()
        at, more = self._told.get(failure, (now - EVERY, 0))
        if now - at < EVERY:
            self._told[failure] = (at, more + 1)
            return
        self._told.pop(failure, None)
        if len(self._told) >= DIFFERENT:
            del self._told[next(iter(self._told))]
        self._told[failure] = (now, 0)
        since = f" ({more} more like it in the last minute)" if more else ""
        why = f": {error}" if type(error) is DeliveryError else ""
        log.warning(
            "event %s (%s) failed at attempt %d: %s%s%s%s",
            event.id, event.type, attempts, type(error).__qualname__, why, since, stack_of(error, below=OURS),
        )  # fmt: skip

"""What an endpoint's answer means for the event. Pure.

    status                            answer             why
    2xx                               None               the status is the receipt; the body does not matter
    410                               Reject             the endpoint wants no more: it is also switched off
    413, 415, 431                     Reject             size, type and headers of an event will be the same next time
    408, 425, 429, 503                BrokerUnavailable  the endpoint asks for a pause, as long as its Retry-After
    502, 504, 520 to 527              BrokerUnavailable  a gateway speaks for an endpoint that did not
    any other: 3xx, 4xx, 5xx          counted retry      RetryLater if it came with a Retry-After

Most of 4xx is counted and not rejected: 404 and 401 are what a deployment or a changed secret looks like, 400 and 422
a receiver one version behind. Trying again for nothing costs a few requests; a dead letter costs an operator's time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from ...errors import BrokerUnavailable, DeliveryError, Reject, RetryLater

GONE = 410
GATEWAY = frozenset({502, 504, *range(520, 528)})
_PAUSE = frozenset({408, 425, 429, 503})
_NEVER = {
    413: "it does not take a body of this size",
    415: "it does not take this content type",
    431: "it does not take this much in headers",
}
_SECONDS = re.compile(r"[0-9]+", re.ASCII)
_SHORTEST = timedelta(seconds=1)  # "Retry-After: 0" must not make us hammer: then the relay's own pause applies


def answer_to(status: int, retry_after: timedelta | None, name: str, destination: str) -> DeliveryError | None:
    """`name` is how messages call the endpoint; `destination` may hold a token."""
    if 200 <= status < 300:
        return None
    said = f"{name} answered {status}"
    if status == GONE:
        return Reject(f"{said}: it is gone and gets nothing more from this process")
    if status in _NEVER:
        return Reject(f"{said}: {_NEVER[status]}")
    if status in _PAUSE or status in GATEWAY:
        return BrokerUnavailable(said, retry_after=retry_after, destination=destination)
    if 300 <= status < 400:
        said += "; redirects are not followed, configure the final URL"
    return DeliveryError(said) if retry_after is None else RetryLater(retry_after, said)


def parse_retry_after(value: str | None, now: datetime, longest: timedelta) -> timedelta | None:
    """Seconds or a date, never longer than `longest`; None for what says nothing usable."""
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        delay = timedelta(seconds=int(value[-9:])) if len(value.lstrip("0")) < 10 else longest
    else:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        delay = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)) - now
    return min(delay, longest) if delay >= _SHORTEST else None

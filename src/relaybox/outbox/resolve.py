"""The answer to a commit whose reply was lost: whether its events are stored, when all that could store them has ended.

An event that is not there may belong to a COMMIT that the server is still at: it waits for a standby, or runs deferred
triggers. PostgreSQL names the transactions that write, and those are waited for; MySQL and SQLite wait by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..clock import Clock
from ..drivers.script import Script, commit, look
from ..durations import Duration, parse_duration
from ..errors import StillCommitting, StoreBusy
from ..op import Op
from ..store.outbox import OutboxStore

PATIENCE = "30s"
LOOK_AGAIN = 0.05  # seconds between two looks

Stored = Callable[[Sequence[str]], Op[dict[str, bool]]]


def resolve(
    store: OutboxStore, stored: Stored, event_ids: Sequence[str], patience: Duration, clock: Clock
) -> Script[dict[str, bool]]:
    answer = yield from look(stored(event_ids))
    missing = [event_id for event_id, found in answer.items() if not found]
    if not missing:
        return answer
    deadline = clock.monotonic() + parse_duration(patience, "patience").total_seconds()
    left: set[str] | None = None  # of the transactions that were under way at the first look
    while left is None or left:
        try:
            under_way = yield from commit(store.under_way(missing))
        except StoreBusy as error:  # where the database itself waits, it does so for as long as it waits for any lock
            raise StillCommitting(missing) from error
        left = under_way if left is None else left & under_way
        if left and clock.monotonic() > deadline:
            raise StillCommitting(missing)
        yield LOOK_AGAIN if left else 0.0
    return (yield from look(stored(event_ids)))

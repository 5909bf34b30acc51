"""Numbers by type of event, exact and at the same price whatever is kept.

    journal   how they change: inserted in the transaction of the change, so that nobody waits for anybody
    totals    what was folded from the journal; the stats are both together, read in one statement

Processors fold from time to time, and so does every purge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from ...event import Event
from ...op import Op
from ..event_rows import as_json, legible, seconds
from ..instances import Instances


class TypeStats(NamedTuple):
    """What is kept of one type of event."""

    event_type: str
    pending: int
    processed: int
    dead: int
    average: timedelta | None  # from received to processed


class InboxJournal(Instances):
    def types(self) -> Op[list[TypeStats]]:
        result = yield self.sql["inbox.status.types"].bind()
        return [
            TypeStats(legible(row[0]) or "?", row[1], row[2], row[3], None if row[4] is None else seconds(row[4]))
            for row in result.rows
        ]

    def unfolded(self) -> Op[bool]:
        """Whether there is anything to fold. Asked first: where only one may write, others are not kept from it."""
        return bool((yield self.sql["inbox.journal.any"].bind()).rows)

    def fold(self, limit: int) -> Op[int]:
        """How many changes went into the totals. Needs a transaction."""
        picked = yield self.sql["inbox.journal.pick"].bind(limit=limit)
        if picked.rows:
            ids = self.numbers([row[0] for row in picked.rows])
            yield self.sql["inbox.journal.add"].bind(seqs=ids)
            yield self.sql["inbox.journal.remove"].bind(seqs=ids)
        return len(picked.rows)

    def journal_accepted(self, events: Sequence[Event]) -> Op[None]:
        counts = sorted(Counter(event.type for event in events).items())
        yield self.sql["inbox.journal.accepted"].bind(rows=as_json(counts))

    def journal_done(self, seqs: Sequence[int], *, pending: int) -> Op[None]:
        """Journals that processed messages among these go: for good (`pending` 0), or to be processed again (1)."""
        yield self.sql["inbox.journal.done"].bind(seqs=self.numbers(seqs), pending=pending)

    def journal_dead(self, seqs: Sequence[int], *, pending: int, dead: int) -> Op[None]:
        """Journals that dead letters among these have come (`dead` 1), or go (-1)."""
        yield self.sql["inbox.journal.dead"].bind(seqs=self.numbers(seqs), pending=pending, dead=dead)

"""The end of a claim in an inbox.

    mark      in the handler's transaction: the row under our token becomes one of `done`, or nothing may happen
    settle    a transaction of its own, for what failed: due again later, or a dead letter

Both present the token of the claim; a claim that was lost changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from ...event import Event
from ...ids import key_hash
from ...op import Op, Statement
from ..claims import Death, HeldRow, RetryRow
from ..event_rows import cut
from .claim import InboxClaims

GONE = "relaybox_mark_is_gone"  # what the last word of a transaction says whose mark is not there


class NextNumber(NamedTuple):
    """What waits for this number of a key may go on."""

    key_hash: int
    position: int


class Past(NamedTuple):
    """A key that goes on past a dead letter."""

    seq: int
    key: str
    after: NextNumber


class Settling(NamedTuple):
    """What failed, what was found to be nothing, which keys moved on, and which are to move on past a dead letter."""

    retry: list[RetryRow]
    dead: list[Death]
    forget: list[HeldRow]
    wake: list[NextNumber]
    skip: list[Past]

    def of(self, seqs: Collection[int]) -> Settling:
        """The part of these messages."""
        retry, dead, forget, _, skip = self
        return Settling(
            [row for row in retry if row.seq in seqs],
            [row for row in dead if row.seq in seqs],
            [row for row in forget if row.seq in seqs],
            [],
            [past for past in skip if past.seq in seqs],
        )


class Late(NamedTuple):
    """What was not settled: the claim of so many was no longer ours; and these are ours, and a transaction has them."""

    lost: int
    locked: Collection[int]


class InboxSettles(InboxClaims):
    @property
    def last_word(self) -> Statement | None:
        """A statement without parameters that may go with the COMMIT: an error with GONE unless the mark is there.
        None: there is none, `still_marked` does it."""
        return None

    def mark(self, held: HeldRow, event: Event, now: datetime | None) -> Op[bool]:
        """Processed. For the transaction of the effect; False: the claim was lost."""
        marked = yield self.sql["inbox.settle.mark"].bind(
            seq=held.seq,
            token=held.token,
            event_type=event.type,
            received=self.to_time(event.created_at),
            now=self.to_time(now),
        )
        if marked.count:
            yield from self.unpend([held], counted=False)
        return marked.count > 0

    def still_marked(self, held: HeldRow, event: Event) -> Op[bool]:
        """Before the commit: whether the mark is in this transaction. False: the handler has rolled it back."""
        still = yield self.sql["inbox.settle.still"].bind(seq=held.seq, event_type=event.type)
        return still.count > 0

    def lock_messages(self, held: Sequence[HeldRow]) -> Op[set[int]]:
        """Which of a batch are still ours. Until our transaction ends nobody else gets them."""
        result = yield self.sql["inbox.settle.lock"].bind(**self.pairs(held))
        return {row[0] for row in result.rows}

    def mark_all(self, held: Sequence[HeldRow], now: datetime | None) -> Op[None]:
        """Processed, all of these, which are locked."""
        yield self.sql["inbox.settle.mark_all"].bind(**self.pairs(held), now=self.to_time(now))
        yield from self.unpend(held, counted=True)

    def unpend(self, held: Sequence[HeldRow], *, counted: bool) -> Op[None]:
        seqs = self.numbers([one.seq for one in held])
        if counted:
            yield self.sql["inbox.journal.marked"].bind(seqs=seqs)
        yield self.sql["inbox.settle.forget"].bind(seqs=seqs)

    def advance(self, key: str, position: int, now: datetime | None) -> Op[int | None]:
        """Its key expects the number after this one from now on. Else: the number that it expects."""
        if (yield from self.move_on(key, position, now)):
            return None
        return (yield from self.expected(key)) or 0

    def move_on(self, key: str, position: int, now: datetime | None) -> Op[bool]:
        moved = yield self.sql["inbox.order.advance"].bind(
            key_hash=key_hash(key), key=key, position=position, now=self.to_time(now)
        )
        return moved.count > 0

    def expected(self, key: str) -> Op[int | None]:
        """The next number of a key; None: nothing of it was ever processed."""
        found = yield self.sql["inbox.order.next"].bind(key_hash=key_hash(key), key=key)
        return int(found.rows[0][0]) if found.rows else None

    def settle_messages(self, settling: Settling, now: datetime | None) -> Op[Late]:
        at = self.to_time(now)
        claimed = [HeldRow(s.seq, s.token) for part in (settling.retry, settling.dead, settling.forget) for s in part]
        ours: set[int] = set()
        locked: set[int] = set()
        if claimed:
            ours = {row[0] for row in (yield self.sql["inbox.claim.hold_fast"].bind(**self.pairs(claimed))).rows}
        if missing := {held.seq: held.token for held in claimed if held.seq not in ours}:
            found = yield self.sql["inbox.settle.tokens"].bind(seqs=self.numbers(sorted(missing)))
            locked = {seq for seq, token in found.rows if token == missing[seq]}
        retry = [
            (r.seq, r.delay.total_seconds(), cut(r.error), int(not r.counted))
            for r in sorted(settling.retry)
            if r.seq in ours
        ]
        if retry:
            values = self.table(retry, "seqs", "delays", "errors", "uncounted")
            yield self.sql["inbox.settle.retry"].bind(**values, now=at)
        dead = [(d.seq, cut(d.error)) for d in sorted(settling.dead) if d.seq in ours]
        if dead:
            yield self.sql["inbox.settle.dead"].bind(**self.table(dead, "seqs", "errors"), now=at)
            yield from self.journal_dead([seq for seq, _ in dead], pending=-1, dead=1)
        gone = [seq for seq, _ in dead] + [held.seq for held in settling.forget if held.seq in ours]
        if gone:
            yield self.sql["inbox.settle.forget"].bind(seqs=self.numbers(gone))
        wake = list(settling.wake)
        for seq, key, after in settling.skip:
            if seq in ours:
                yield from self.move_on(key, after.position - 1, now)
                wake.append(after)
        yield from self.wake(wake, now)
        return Late(len(claimed) - len(ours) - len(locked), locked)

    def wake(self, wakes: Sequence[NextNumber], now: datetime | None) -> Op[None]:
        if not wakes:
            return
        found = yield self.sql["inbox.order.sleepers"].bind(**self.table(sorted(set(wakes)), "hashes", "positions"))
        if found.rows:
            seqs = self.numbers([row[0] for row in found.rows])
            yield self.sql["inbox.order.wake"].bind(seqs=seqs, now=self.to_time(now))

"""Ordered keys that do not go on: numbers that are missing, heads that fail; going on without them, and waking who was
forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ...ids import key_hash
from ...op import Op
from ...values import ALL, BlockedKey, StoredEvent
from ..event_rows import EPOCH, legible, seconds
from ..events import Search
from .operate import InboxOperate
from .order import Order, numbered_key, position_of
from .settle import NextNumber


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers `first` to `last` of a key have not come, or died; `age` is how long the message behind them waits."""

    key: str
    first: int
    last: int
    age: timedelta
    since: datetime
    letter: int | None = None  # the number of the first dead letter among them


class InboxGaps(InboxOperate):
    def gaps(self, order: Order, limit: int, now: datetime | None) -> Op[list[Gap]]:
        """The oldest first. Costs time by the messages that wait, whatever was processed."""
        result = yield self.sql["inbox.order.gaps"].bind(start=order.start, limit=limit, now=self.to_time(now))
        found = [
            Gap(legible(key) or "", first, last, seconds(age), self._time(since) or EPOCH, letter)
            for key, first, last, age, since, letter in result.rows
        ]
        return sorted(found, key=lambda gap: gap.age, reverse=True)

    def blocked(self, limit: int, now: datetime | None) -> Op[list[BlockedKey]]:
        """Every run of missing numbers, and keys whose next message is tried again."""
        order = (yield from self.plan_of()).order
        if order is None:
            return []
        gaps = yield from self.gaps(order, limit, now)
        letters: dict[int, StoredEvent] = {}
        if seqs := sorted(gap.letter for gap in gaps if gap.letter is not None):
            search, page = Search(ALL, seqs=seqs), None
            while page is None or not page.ended:
                page = yield from self.events("dead", search, len(seqs))
                letters |= {one.event.seq or 0: one for one in page.events}
                search = search._replace(after=max(letters, default=search.upto))
        retries = yield self.sql["inbox.order.retries"].bind(limit=limit)
        keys = [
            BlockedKey(
                legible(key) or "",
                "retry",
                self._time(since) or EPOCH,
                legible(event_id) or "?",
                attempts,
                legible(error),
            )
            for key, since, event_id, attempts, error in retries.rows
        ]
        for gap in gaps:
            letter = letters.get(gap.letter or 0)
            if letter is not None and position_of(letter.event) == gap.first:
                dead = (letter.event.id, letter.attempts, letter.error)
                keys.append(BlockedKey(gap.key, "dead", gap.since, *dead, gap.first, gap.last))
            else:
                keys.append(BlockedKey(gap.key, "gap", gap.since, first=gap.first, last=gap.last))
        return sorted(keys, key=lambda blocked: blocked.since)[:limit]

    def release_key(self, key: str, to: int | None, now: datetime | None) -> Op[bool]:
        """The key goes on with this number, or with the lowest that is here; never back. A message that is tried again
        later runs beside the others then."""
        order = (yield from self.plan_of()).order
        if order is None:
            return False
        hashed = key_hash(key)
        expected = yield from self.expected(key)
        first = order.start if expected is None else expected
        if to is None:
            found = (yield self.sql["inbox.order.lowest"].bind(key_hash=hashed, next=first or 0)).rows
            if not found or first is None:
                return False
            seq, to, retried = found[0]
            if to == first:
                if not retried:
                    return False
                yield self.sql["inbox.order.aside"].bind(seq=seq)
                to += 1
        elif first is not None and to <= first:
            return False
        yield self.sql["inbox.order.move"].bind(key_hash=hashed, key=key, next=to, now=self.to_time(now))
        yield from self.wake([NextNumber(hashed, to)], now)
        return True

    def sweep(self, order: Order, now: datetime | None) -> Op[int]:
        """Wake what is next and held all the same, because the process that had its predecessor died too soon; and
        go on past gaps that have lasted as long as they may. How many keys go on."""
        yield from self.still_without_order(now)
        heads = yield self.sql["inbox.order.heads"].bind(now=self.to_time(now))
        self._asked.clear()
        rows = [row for row in heads.rows if numbered_key(row[0]) is not None and type(row[1]) is int]
        blocked: dict[str, tuple[int, int]] = {}
        for name, position, expected, _, _ in rows:
            key = numbered_key(name) or ""
            first = expected if expected is not None else order.start
            if first is not None and position > first:
                blocked[key] = (first, position)
        moved = yield from self.pass_over(blocked, now)
        wakes = []
        for name, position, expected, hashed, age in rows:
            key = numbered_key(name) or ""
            first = moved.get(key, expected if expected is not None else order.start)
            if first is not None and position > first:
                if not isinstance(order.missing, timedelta) or seconds(age) < order.missing:
                    continue
                at = self.to_time(now)
                yield self.sql["inbox.order.move"].bind(key_hash=hashed, key=key, next=position, now=at)
            wakes.append(NextNumber(hashed, position))
        yield from self.wake(wakes, now)
        return len(wakes)

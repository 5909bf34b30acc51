"""Numbers that are missing in an ordered inbox: finding them, going on without them, and waking who was forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ...ids import key_hash
from ...op import Op
from .meta import InboxMeta
from .order import Order
from .settle import Wake


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers `first` to `last` of a key have not come, or died; `age` is how long the message behind them waits."""

    key: str
    first: int
    last: int
    age: timedelta
    dead: bool  # at least one of them is a dead letter


class InboxGaps(InboxMeta):
    def gaps(self, order: Order, limit: int, now: datetime | None) -> Op[list[Gap]]:
        """The oldest first. Costs time by the messages that wait, whatever was processed."""
        result = yield self.sql["inbox.order.gaps"].bind(start=order.start, limit=limit, now=self.to_time(now))
        found = [
            Gap(key, first, last, timedelta(seconds=float(age)), bool(dead))
            for key, first, last, age, dead in result.rows
        ]
        return sorted(found, key=lambda gap: gap.age, reverse=True)

    def skip(self, key: str, to: int | None, now: datetime | None) -> Op[int | None]:
        """The key goes on with this number (None: the lowest that is held back), unless it is further already. Returns
        the number; None: nothing of the key is held back."""
        if to is None:
            lowest = (yield self.sql["inbox.order.lowest"].bind(key_hash=key_hash(key))).rows[0][0]
            if lowest is None:
                return None
            to = int(lowest)
        yield self.sql["inbox.order.move"].bind(key_hash=key_hash(key), key=key, next=to, now=self.to_time(now))
        yield from self.wake([Wake(key_hash(key), to)], now)
        return to

    def sweep(self, order: Order, now: datetime | None) -> Op[int]:
        """Wake what is next and held all the same, because the process that had its predecessor died too soon; and
        go on past gaps that have lasted as long as they may. How many keys go on."""
        yield from self.still_without_order(now)
        heads = yield self.sql["inbox.order.heads"].bind(now=self.to_time(now))
        self._asked.clear()
        blocked: dict[str, tuple[int, int]] = {}
        for key, position, expected, _, _ in heads.rows:
            first = expected if expected is not None else order.start
            if first is not None and position > first:
                blocked[key] = (first, position)
        moved = yield from self.pass_over(blocked, now)
        wakes = []
        for key, position, expected, hashed, age in heads.rows:
            first = moved.get(key, expected if expected is not None else order.start)
            if first is not None and position > first:
                if not isinstance(order.missing, timedelta) or float(age) < order.missing.total_seconds():
                    continue
                at = self.to_time(now)
                yield self.sql["inbox.order.move"].bind(key_hash=hashed, key=key, next=position, now=at)
            wakes.append(Wake(hashed, position))
        yield from self.wake(wakes, now)
        return len(wakes)

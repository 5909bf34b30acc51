"""Claims in an inbox: leases on pending rows, in a transaction of their own. The attempt is counted then.

A row that a handler's transaction has locked is passed over by everybody else, whatever its lease says. So neither a
renewal nor a take-over waits for a handler, and a slow one loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ...errors import ConfigError, UnreadableRow
from ...ids import key_hash, shard_of
from ...op import Op
from ..claims import Claim, HeldRow
from ..event_rows import legible, seconds
from ..payloads import Payloads
from .order import NumberedMessage, Order, Priority, admit, number_in, numbered_key
from .stats import InboxJournal

SUSPECT = 2  # claims in a row without an outcome, from which on a message is claimed alone
LAST = 2**63 - 1
LOOK_AT = 500  # messages that an ordered claim looks at, at least: most of them may have to be held back


class Arrived(NamedTuple):
    """A message as claimed."""

    row: Sequence[Any]  # the columns of Event.stored
    attempts: int
    key_hash: int
    position: int | None
    replayed: bool
    strikes: int
    sender: str


@dataclass(frozen=True, slots=True)
class Share:
    """The keys of one of `workers` workers, and of nobody else: `worker` counts from 0."""

    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not (type(self.worker) is type(self.workers) is int and 0 <= self.worker < self.workers):
            raise ConfigError(f"expected worker to be 0 to workers - 1, got {self.worker!r} of {self.workers!r}")

    def has(self, key: str | None) -> bool:
        """Whether a key is in this share; the function <inbox>_mine in SQL. No key is in every share."""
        return key is None or shard_of(key, self.workers) == self.worker


class InboxClaims(InboxJournal, Payloads):
    former = False  # there are ids that were kept without their sender
    until = 0  # messages up to this number may have been processed while nobody kept an order
    others_process = False  # their own code may process rows of an adopted table at any time

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._asked: set[tuple[str, int]] = set()

    # -- claim ------------------------------------------------------------------------------------

    def claim_messages(
        self,
        claim: Claim,
        limit: int,
        now: datetime | None,
        *,
        share: Share,
        order: Order | None = None,
        priority: Priority | None = None,
        full: Collection[int] = (),
    ) -> Op[tuple[list[Arrived], bool]]:
        """Messages, each key in the order of its numbers, and whether there may be more. An ordered inbox gives nothing
        of the keys that are `full` (their hashes). Needs a transaction."""
        look_at = limit if order is None else max(limit, LOOK_AT)
        picked = yield from self._pick(look_at, share, priority, now, full)
        if not picked:
            return [], False
        seqs: Sequence[int] = _together(picked)
        if picked[0][1] >= SUSPECT:
            limit = 1
        if order is not None:
            seqs = yield from self._next_of_their_keys(seqs, limit, order, now)
        if not seqs:
            return [], True
        return (yield from self._take(claim, seqs, now)), True

    def _pick(
        self, limit: int, share: Share, priority: Priority | None, now: datetime | None, full: Collection[int]
    ) -> Op[Sequence[tuple[int, int]]]:
        values = {"limit": limit, "now": self.to_time(now), "worker": share.worker, "workers": share.workers}
        values["full"] = self.numbers(sorted(full))
        if priority is None:
            return _struck((yield self.sql["inbox.claim.pick"].bind(**values)).rows)
        waiting = {}
        for value in priority.values():
            ranked = (yield self.sql["inbox.claim.ranked"].bind(**values, priority=value)).rows
            waiting[value] = [(seq, seconds(waited).total_seconds()) for seq, waited in ranked]
        first = priority.first(waiting, limit)
        if not first:
            return []
        locked = yield self.sql["inbox.claim.lock"].bind(seqs=self.numbers(first), now=self.to_time(now))
        found = {row[0]: row for row in _struck(locked.rows)}
        return [found[seq] for seq in first if seq in found]

    def _next_of_their_keys(
        self, seqs: Sequence[int], limit: int, order: Order, now: datetime | None
    ) -> Op[Sequence[int]]:
        """Holds back what is not next. The rows are locked before their state is read."""
        looked = yield self.sql["inbox.order.look"].bind(seqs=self.numbers(seqs))
        messages = [_numbered(*row) for row in looked.rows]
        rows = yield from self._past_history([one for one in messages if one is not None], order, now)
        admission = admit(rows, order.start)
        if admission.begin:
            new = sorted((key_hash(key), key, first) for key, first in admission.begin.items())
            values = self.table(new, "hashes", "keys", "nexts")
            yield self.sql["inbox.order.begin"].bind(**values, now=self.to_time(now))
        if admission.hold:
            yield self.sql["inbox.order.hold"].bind(seqs=self.numbers(admission.hold))
        numbered = {row.seq for row in rows}
        taken = [*(seq for seq in seqs if seq not in numbered), *admission.take]
        taken += yield from self._followers(admission.then, limit - len(taken))
        return taken[:limit]

    def _past_history(
        self, rows: Sequence[NumberedMessage], order: Order, now: datetime | None
    ) -> Op[Sequence[NumberedMessage]]:
        """The rows, after numbers that were processed while nobody kept an order have been passed over. Asked once per
        key and number; `sweep` asks again."""
        heads: dict[str, tuple[int, int]] = {}
        for row in rows:
            first = row.expected if row.expected is not None else order.start
            low = min(row.position, row.lowest or row.position, heads.get(row.key, (0, row.position))[1])
            if first is not None and (row.expected is None or self.others_process):
                heads[row.key] = (first, low)
        asked = {key: head for key, head in heads.items() if head[1] > head[0] and (key, head[0]) not in self._asked}
        self._asked |= {(key, first) for key, (first, _) in asked.items()}
        found = yield from self.pass_over(asked, now)
        return [row._replace(expected=found.get(row.key, row.expected)) for row in rows]

    def pass_over(self, heads: Mapping[str, tuple[int, int]], now: datetime | None) -> Op[dict[str, int]]:
        """Of keys that wait for a number, with the lowest that is here: where they go on, because the history ends
        behind that number. Only of those."""
        if not heads or not (self.until or self.others_process):
            return {}
        keys = self.texts(list(heads))
        ends: dict[str, int] = {}
        for name, headers in (yield self.sql["inbox.order.history"].bind(keys=keys, until=self.until)).rows:
            key = numbered_key(name) or ""
            number, (first, low) = number_in(headers), heads.get(key, (0, 0))
            if number is not None and first <= number < low:
                ends[key] = max(ends.get(key, 0), number + 1)
        yield from self.raise_all(ends, now)
        return ends

    def raise_all(self, nexts: Mapping[str, int], now: datetime | None) -> Op[None]:
        if nexts:
            rows = sorted((key_hash(key), key, number) for key, number in nexts.items())
            values = self.table(rows, "hashes", "keys", "nexts")
            yield self.sql["inbox.order.raise"].bind(**values, now=self.to_time(now))

    def _followers(self, then: Mapping[str, int], room: int) -> Op[list[int]]:
        """Held ones that come right after what is claimed now, key by key in turn, as many as there is room for."""
        window = room // len(then) if then else 0
        if window < 1:
            return []
        heads = sorted((key_hash(key), position) for key, position in then.items() if position < LAST - window)
        values = self.table(heads, "hashes", "positions")
        found = yield self.sql["inbox.order.followers"].bind(**values, window=window)
        expected, followers = dict(heads), list[int]()
        for seq, hashed, position in sorted(found.rows, key=lambda row: (row[2], row[0])):
            if position == expected[hashed]:
                followers.append(seq)
                expected[hashed] += 1
        return followers

    def _take(self, claim: Claim, seqs: Sequence[int], now: datetime | None) -> Op[list[Arrived]]:
        yield self.sql["inbox.claim.take"].bind(
            seqs=self.numbers(seqs),
            token=claim.token,
            owner=claim.owner,
            lease=claim.lease.total_seconds(),
            now=self.to_time(now),
        )
        asked = {"seqs": self.numbers(seqs), "token": claim.token, "room": claim.room}
        try:
            result = yield self.sql["inbox.claim.read"].bind(**asked)
        except UnreadableRow:
            result = yield self.sql["inbox.claim.read_raw"].bind(**asked)
        found = {row[0]: row for row in result.rows}
        return self.arrived([found[seq] for seq in seqs if seq in found])

    def arrived(self, rows: Sequence[Any]) -> list[Arrived]:
        return [
            Arrived(
                self.event_row(row),
                row[12],
                _number(row[13]) or 0,
                _number(row[14]),
                bool(row[15]),
                row[16],
                legible(row[17]) or "",
            )
            for row in rows
        ]

    def renew_messages(self, held: Sequence[HeldRow], lease: timedelta, now: datetime | None) -> Op[set[int]]:
        fast = yield self.sql["inbox.claim.hold_fast"].bind(**self.pairs(held))
        if fast.rows:
            yield self.sql["inbox.claim.renew"].bind(
                seqs=self.numbers([row[0] for row in fast.rows]), lease=lease.total_seconds(), now=self.to_time(now)
            )
        return (yield from self.held_messages(held))

    def held_messages(self, held: Sequence[HeldRow]) -> Op[set[int]]:
        result = yield self.sql["inbox.claim.ours"].bind(**self.pairs(held))
        return {row[0] for row in result.rows}

    def release_messages(self, held: Sequence[HeldRow], now: datetime | None) -> Op[int]:
        fast = yield self.sql["inbox.claim.hold_fast"].bind(**self.pairs(held))
        if not fast.rows:
            return 0
        seqs = self.numbers([row[0] for row in fast.rows])
        return (yield self.sql["inbox.claim.release"].bind(seqs=seqs, now=self.to_time(now))).count

    def abandon_messages(self, claims: Sequence[Claim], now: datetime | None) -> Op[None]:
        for owner in sorted({claim.owner for claim in claims}):
            tokens = self.numbers([claim.token for claim in claims if claim.owner == owner])
            yield self.sql["inbox.claim.abandon"].bind(tokens=tokens, owner=owner, now=self.to_time(now))

    def oldest_message(self, now: datetime | None) -> Op[timedelta]:
        result = yield self.sql["inbox.claim.oldest"].bind(now=self.to_time(now))
        return seconds(result.rows[0][0]) if result.rows else timedelta()

    def next_message(self, now: datetime | None) -> Op[timedelta | None]:
        result = yield self.sql["inbox.claim.next"].bind(now=self.to_time(now))
        return seconds(result.rows[0][0]) if result.rows else None

    # -- instances --------------------------------------------------------------------------------

    def free_claims(self, owners: Sequence[int], now: datetime | None) -> Op[int]:
        owned = yield self.sql["inbox.instance.owned"].bind(owners=self.numbers(owners))
        if not owned.rows:
            return 0
        seqs = self.numbers([row[0] for row in owned.rows])
        return (yield self.sql["inbox.instance.free"].bind(seqs=seqs, now=self.to_time(now))).count


def _number(value: Any) -> int | None:
    """One that has a next one. A row may be anybody's."""
    return value if type(value) is int and value < LAST else None


def _numbered(seq: int, key: Any, position: Any, expected: Any, lowest: Any) -> NumberedMessage | None:
    """None: it has no number, or no key of which there can be numbers, and is in no order."""
    number, name = _number(position), numbered_key(key)
    if number is None or number < 0 or name is None:
        return None
    return NumberedMessage(seq, name, number, _number(expected), _number(lowest))


def _struck(rows: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
    """Messages with their strikes; one whose strikes are no number may have any."""
    return [(seq, strikes if type(strikes) is int else SUSPECT) for seq, strikes in rows]


def _together(picked: Sequence[tuple[int, int]]) -> list[int]:
    """What may share a claim: a message that has perhaps killed its process goes alone, and takes no neighbours
    along when it does so again."""
    first, strikes = picked[0][0], picked[0][1]
    return [first] if strikes >= SUSPECT else [row[0] for row in picked if row[1] < SUSPECT]

"""What a message does to a replicated table: everything of it once, in one transaction with the place of the table.

    n ≤ position        seen: nothing
    n = position + 1    applied; a snapshot says nothing new
    else                a gap, or another epoch: all rows, from the source or from a snapshot

Deleted rows wait beside the table until the inserted ones are in it: a row that was updated is never deleted, so what
refers to it stays. A message of one row is applied if its version is newer than that of the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from .. import faults
from ..errors import FeedError, NotFound
from ..op import Op
from ..store.feeds.reading import CURSOR_BYTES, FeedPlace, FeedReading
from ..store.replica import Position, ReplicaStore
from ..store.replica.kept import KeptTable
from ..store.replica.mapping import holds_json
from ..store.replica.rows import decode
from .message import FeedMessage, RowValues, rows_of
from .moves import Moves, there

FIRST_ROWS, MOST_ROWS = 50, 1_000  # of one fetch


class Applied(NamedTuple):
    """What a message did."""

    position: Position
    inserted: int = 0
    deleted: int = 0
    copied: bool = False
    first: bool = True  # False: it was seen before


class DeltaPart(NamedTuple):
    """Some rows of a delta."""

    deleted: bool
    rows: Sequence[RowValues]


@dataclass(frozen=True, slots=True)
class Applying:
    """Of one table. `source`: None where only messages come."""

    store: ReplicaStore
    kept: KeptTable
    feed: str
    source: FeedReading | None

    # -- where the table is -------------------------------------------------------------------------

    def found(self, *, how: str = "find") -> Op[Position]:
        """With the columns of the table."""
        found = yield from self.store.position(self.kept.table, how=how)
        if found is None:
            raise FeedError(f"table {self.kept.table!r} follows no feed yet; {self.store.advice}", "table")
        if found.feed != self.feed:
            raise FeedError(f"table {self.kept.table!r} follows feed {found.feed!r}, not {self.feed!r}", "table")
        yield from self.kept.know(found.key, found.types)
        return found

    def _moved(self, to: Position, now: datetime | None) -> Op[None]:
        return self.store.move(self.kept.table, to, now)

    # -- a message ------------------------------------------------------------------------------------

    def take(self, message: FeedMessage, now: datetime | None, latest: int) -> Moves[Applied]:
        """`latest`: no epoch begins after that."""
        if message.feed != self.feed:
            raise FeedError(
                f"a message of feed {message.feed!r} came, and this replica follows {self.feed!r}", "message"
            )
        position = yield from self.found(how="lock")
        if message.epoch != position.epoch and message.at > latest:
            raise FeedError(
                f"a message of feed {message.feed!r} says that an epoch has begun in the future: all others of today "
                "would be older. The clock of its source is wrong, or somebody else has sent it",
                "message",
            )
        if message.op is not None:
            return (yield from self._row(position, message, now))
        return (yield from self.delta(position, message, now))

    def advance(self, most: int, now: datetime | None) -> Moves[tuple[Position, Sequence[Applied]]]:
        """What the source has and the table has not, or a part of it. Nothing, while another process is at it."""
        at, done, source = (yield from self.found()), list[Applied](), self.source
        assert source is not None
        if (yield from self.store.position(self.kept.table, how="take")) is None:
            return at, done
        at = yield from self.found()
        place = yield from there(source.place())
        if at.epoch != place.epoch or at.by_rows:
            done.append((yield from self.copy(at, None, now)))
            return done[-1].position, done
        if at.n > place.n:
            raise FeedError(
                f"table {self.kept.table!r} has delta {at.n} of feed {self.feed!r}, the source {place.n}: it is a "
                "standby that is late, or was restored from a backup; then drop the feed and create it again",
                "gap",
            )
        seq, found = at.seq or 0, most
        while len(done) < most == found and at.n < place.n:
            deltas = yield from there(source.after(place, seq, most))
            found = len(deltas)
            for message in map(FeedMessage.stored, deltas):
                seq = message.seq or 0
                if message.epoch == at.epoch and message.n > at.n:
                    done.append((yield from self.delta(at, message, now)))
                    at = done[-1].position
                    if message.claim_check or done[-1].copied:
                        return at, done
        if not done and at.n < place.n:
            done.append((yield from self.copy(at, None, now)))
        return (done[-1].position if done else at), done

    def delta(self, position: Position, message: FeedMessage, now: datetime | None) -> Moves[Applied]:
        if message.epoch == position.epoch:
            if message.n <= position.n:
                return Applied(position, first=False)
            if message.n == position.n + 1 and not position.by_rows:
                try:
                    if not message.snapshot:
                        yield from self._change(message)
                except NotFound:  # its rows are not kept any more
                    return (yield from self.copy(position, message, now))
                to = position._replace(n=message.n, seq=message.seq)
                yield from self._moved(to, now)
                return Applied(to, *((0, 0) if message.snapshot else (message.inserted, message.deleted)))
        elif message.at < position.era:
            return Applied(position, first=False)  # of an epoch that is over
        mixed = message.epoch == position.epoch and position.by_rows
        if mixed and self.source is None:
            raise FeedError(
                f"table {self.kept.table!r} follows feed {self.feed!r} by messages of single rows, and a delta came: "
                "it may be older than some of the rows. Send one or the other, or give the replica its source",
                "message",
            )
        whole = message.snapshot or message.n == 1  # the first delta of an epoch has all rows, too
        if not whole or mixed or (message.claim_check and self.source is not None):
            return (yield from self.copy(position, message, now))
        yield from self._replace(message)
        era = position.era if message.epoch == position.epoch else message.at
        to = Position(self.feed, position.key, position.types, message.epoch, message.n, message.seq, era)
        yield from self._moved(to, now)
        return Applied(to, message.inserted, copied=True)

    def _change(self, message: FeedMessage) -> Moves[None]:
        parts, counted, replaces = Parts(message, self.source), {True: 0, False: 0}, message.deleted > 0
        while (part := (yield from parts.next())) is not None:
            counted[part.deleted] += len(part.rows)
            if not part.deleted:
                yield from self.kept.upsert(part.rows)
            if replaces:
                yield from self.kept.note(part.rows, gone=part.deleted)
            faults.hit("deliver.after")
        _check_counts(message, counted[False], counted[True])
        if replaces:
            yield from self.kept.delete()
            yield from self.kept.clear()

    # -- all rows -------------------------------------------------------------------------------------

    def _replace(self, message: FeedMessage) -> Moves[None]:
        """By those of a snapshot."""
        parts, counted, sweeps = Parts(message, self.source), 0, (yield from self._swept())
        while (part := (yield from parts.next())) is not None:
            counted += len(part.rows)
            yield from self._fill(part.rows, message.n, sweeps)
        _check_counts(message, counted, 0)
        yield from self._sweep(message.n, sweeps)

    def copy(self, position: Position, message: FeedMessage | None, now: datetime | None) -> Moves[Applied]:
        """By those of the source, with the place that they have in one snapshot of it."""
        source = self.source
        if source is None:
            raise _gap(self.feed, position, message)
        yield from there(source.begin())
        place = yield from there(source.place())
        types = yield from there(source.columns(place))
        check_same(self.kept.table, position, place, types)
        last = yield from there(source.last(place))
        yield from there(source.open(place, [name for name, type in types.items() if holds_json(type)]))
        counted, most, sweeps = 0, FIRST_ROWS, (yield from self._swept())
        while lines := (yield from there(source.fetch(most))):
            yield from self._fill([dict(decode(line)) for line in lines], place.n, sweeps)
            counted += len(lines)
            most = min(MOST_ROWS, max(1, CURSOR_BYTES * len(lines) // sum(map(len, lines))))
        yield from there(source.end())
        yield from self._sweep(place.n, sweeps)
        to = Position(self.feed, position.key, position.types, place.epoch, place.n, last, place.at)
        if message is not None and message.epoch == to.epoch and message.n > to.n:
            raise _gap(self.feed, to, message)
        yield from self._moved(to, now)
        return Applied(to, counted, copied=True)

    def _swept(self) -> Op[bool]:
        """Whether there may be rows that have to go."""
        yield from self.kept.clear()
        return (yield from self.kept.some())

    def _fill(self, rows: Sequence[RowValues], n: int, sweeps: bool) -> Op[None]:
        yield from self.kept.upsert(rows)
        if sweeps:
            yield from self.kept.note(rows, snapshot=n)
        faults.hit("deliver.after")

    def _sweep(self, n: int, sweeps: bool) -> Op[None]:
        if sweeps:
            yield from self.kept.sweep(n)
            yield from self.kept.clear()

    # -- one row --------------------------------------------------------------------------------------

    def _row(self, at: Position, message: FeedMessage, now: datetime | None) -> Op[Applied]:
        if message.epoch != at.epoch:
            if message.at < at.era:
                return Applied(at, first=False)
            yield from self.kept.clear()
            at = Position(self.feed, at.key, at.types, message.epoch, 0, None, message.at)
        if message.n <= at.n:
            return Applied(at, first=False)
        row = message.row()
        version, gone, seen = yield from self.kept.noted(row)
        fresh = version < message.n or (version == message.n and gone and message.op != "d")
        if fresh:
            yield from self.kept.remove(row) if message.op == "d" else self.kept.upsert([row])
            version, gone = message.n, message.op == "d"
        snapshot, arrived = at.snapshot, at.arrived
        if message.op == "r" and message.n >= snapshot:
            arrived = (arrived if message.n == snapshot else 0) + (seen != message.n)
            seen = snapshot = message.n
        yield from self.kept.note([row], n=version, gone=gone, snapshot=seen)
        to = at._replace(seq=None, by_rows=True, snapshot=snapshot, arrived=arrived)
        if message.op == "r" and message.n == snapshot and arrived == message.rows:
            yield from self.kept.sweep(snapshot)
            yield from self.kept.clear(snapshot)
            to = to._replace(n=snapshot, arrived=0)
        yield from self._moved(to, now)
        return Applied(to, int(fresh and not gone), int(fresh and gone), first=fresh)


class Parts:
    """The rows of a delta: deleted ones, then inserted ones, no more than a chunk of them in memory."""

    def __init__(self, message: FeedMessage, source: FeedReading | None) -> None:
        self._message, self._source = message, source
        self._number = 0
        self._inline: list[DeltaPart] | None = None
        if not message.claim_check:
            found = message.decoded()
            self._inline = [
                DeltaPart(True, rows_of(found.get("deleted"))),
                DeltaPart(False, rows_of(found.get("inserted"))),
            ]
        elif source is None:
            raise FeedError(
                f"the rows of delta {message.n} of feed {message.feed!r} are in its source, by claim check: give the "
                "replica its source, or the feed a larger inline_rows",
                "source",
            )

    def next(self) -> Moves[DeltaPart | None]:
        """None: that was the last."""
        if self._inline is not None:
            return self._inline.pop(0) if self._inline else None
        assert self._source is not None
        place, self._number = (self._message.feed, self._message.epoch, self._message.n), self._number + 1
        chunk = yield from there(self._source.chunk(*place, self._number - 1))
        return None if chunk is None else DeltaPart(chunk.op == "D", rows_of(decode(chunk.payload)))


def _check_counts(message: FeedMessage, inserted: int, deleted: int) -> None:
    if (inserted, deleted) != (message.inserted, message.deleted):
        raise FeedError(
            f"delta {message.n} of feed {message.feed!r} says {message.inserted} inserted and {message.deleted} "
            f"deleted rows, and has {inserted} and {deleted}: nothing of it was applied",
            "message",
        )


def check_same(table: str, position: Position, place: FeedPlace, types: Mapping[str, str]) -> None:
    """Columns of the table's own do no harm; the feed's are as they were when it was made."""
    changed = [f"{name!r} is new" for name in types.keys() - position.types.keys()]
    changed += [f"{name!r} is gone" for name in position.types.keys() - types.keys()]
    both = position.types.keys() & types.keys()
    changed += [f"{name!r} is {types[name]} now" for name in both if types[name] != position.types[name]]
    if position.types and changed:
        raise FeedError(
            f"feed {position.feed!r} has other columns than table {table!r} was made for: {', '.join(sorted(changed))}"
            ". Change the table, or drop it, then call migrate() of the replica: all rows are copied anew",
            "columns",
        )
    if list(place.key) != list(position.key):
        raise FeedError(
            f"feed {position.feed!r} has the key {', '.join(place.key)} now, and table {table!r} was made for "
            f"{', '.join(position.key)}. Drop the table, then call migrate() of the replica",
            "columns",
        )


def _gap(feed: str, position: Position, message: FeedMessage | None) -> FeedError:
    came = "nothing of it is here yet" if message is None else f"message {message.n} came"
    has = "has nothing of it" if position.epoch is None else f"is at {position.n}"
    if message is not None and message.epoch != position.epoch and position.epoch is not None:
        came += " of another epoch"
    return FeedError(
        f"feed {feed!r}: {came}, and the table {has}. What is between comes later, or not at all: then a snapshot "
        "helps, feeds.snapshot() of the source, or a replica that is given its source",
        "gap",
    )

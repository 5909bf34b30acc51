"""Claiming parts of a log: a group's cursors move on, and what they passed is held in ranges until it is settled.

A claim decides in `_choose`, after a look at the database under the locks of the cursors it may move. Ordered groups
give a shard to one member at a time; what somebody left behind there comes first. A range that is claimed for the third
time is split into parked events, so that one that ends its process ends alone in the dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple

from ...errors import StoreBusy, Undecodable
from ...event import Event, stored_time
from ...ids import key_hash, new_token
from ...op import Op
from ..event_rows import lane_key
from . import LAST, ClaimedRanges, GroupRow, Pages, Parking, Place, Range, RangeSettlement, Row, TopicRow
from .page_room import PageRoom
from .parked import ParkedOps, fitting

ANY_SIZE = 2**31 - 1
SPLIT = 3  # the attempt at which a range becomes single events
_PATIENCE = 100  # rounds of waiting for claims that are under way; each lasts as long as one of them
_by_seq = itemgetter(0)


class _Cursor(NamedTuple):
    shard: int
    base: int
    target: int | None
    seq: int
    version: int
    idle: bool  # has not moved for a while
    neglected: bool  # for so long that its reader must have stopped


class _Moving(NamedTuple):
    """A cursor that may be replaced: its version, the lowest range there is in its shard, whether it stood for long."""

    version: int
    low: int
    idle: bool


class _Known(NamedTuple):
    """A range as it was found."""

    range: Range
    until: str  # as the database writes it: it may be -infinity
    owner: int
    alive: bool
    events: int  # not finished
    number: int


class _Wish(NamedTuple):
    """How much a claim may give (events in a range, ranges, events in all), up to which tick, and what is here."""

    events: int
    ranges: int
    most: int
    target: int | None
    known: Collection[int] | None  # tokens
    room: PageRoom | None  # None: any number of bytes


class _Wanted(NamedTuple):
    place: Place
    limit: int


class _Found(NamedTuple):
    place: Place
    rows: list[Row]
    more: bool  # there are others behind them


class RangeOps(ParkedOps):
    # -- claim ------------------------------------------------------------------------------------

    def claim(
        self,
        topic: TopicRow,
        group: GroupRow,
        member: int,
        *,
        events: int,
        ranges: int,
        lease: timedelta,
        now: datetime | None,
        pages: Pages | None = None,
        target: int | None = None,
        most: int | None = None,
        known: Collection[int] | None = None,
        room: PageRoom | None = None,
    ) -> Op[ClaimedRanges]:
        """Places for this member, `events` at most in each and `most` in all (one range that was left behind is
        given in any case): those that others left behind first, then what is unread, up to tick `target` or the
        newest. An ordered group gives a shard to one member at a time; each gets its fair share. `known`: the
        tokens of what the member has; whatever else is in its name was left behind. `room`: for payloads; what has
        none stays in the log. Needs a transaction.

        Four statements when there is something, one when there is nothing. Shards that turned out to have nothing
        are behind us then, so the next ones are tried. Not in one transaction with a settle: the commit does not
        wait for the disk.
        """
        if topic.topic.tracking == "rows":
            return ClaimedRanges([], 0, behind=True)  # all of it comes from claim_parked
        wish = _Wish(events, ranges, LAST if most is None else most, target, known, room)
        taken = ClaimedRanges([], 0)
        for _ in range(topic.topic.shards):
            taken, ended = yield from self._claim(topic, group, member, wish, lease, now, pages)
            if taken.pages or taken.split or not (ended and taken.behind):
                break
        return taken

    def _claim(
        self,
        topic: TopicRow,
        group: GroupRow,
        member: int,
        wish: _Wish,
        lease: timedelta,
        now: datetime | None,
        pages: Pages | None,
    ) -> Op[tuple[ClaimedRanges, int]]:
        """One round over a fair share of the cursors, and how many of them are at the end now."""
        shards = topic.topic.shards
        locked = yield self.sql["topic.range.lock"].bind(group=group.id, member=member, count=shards, now=now)
        if not locked.rows:
            return ClaimedRanges([], 0, state="cancelled"), 0
        state, tick, behind = locked.rows[0][:3]
        cursors = [_Cursor(*row[3:10]) for row in locked.rows if row[3] is not None]
        if not cursors:
            return ClaimedRanges([], tick, behind=behind > 0, state=state), 0
        looked = yield self.sql["topic.range.look"].bind(
            topic=topic.id,
            group=group.id,
            member=member,
            shards=[cursor.shard for cursor in cursors],
            count=shards,
            ordered=group.ordered,
            goal=wish.target,
            now=now,
        )
        since, first, tick, members, alive, held = looked.rows[0][:6]
        group = replace(group, since=since and self.from_time(since), first=first)  # a seek may have changed them
        if not alive:
            return ClaimedRanges([], tick, behind=behind > 0, state=state, alive=False), 0
        known = [_known(row, member, wish.known) for row in looked.rows if row[6] is not None]
        fair = -(-shards // members)
        left, free = _choose(cursors, known, member, fair if group.ordered else shards, wish, group.ordered)
        retaken = (yield from self._retake(group, left, member, lease, now)) if left else []
        if retaken is None:  # somebody woke up in a shard that must stay in order
            return ClaimedRanges([], tick, behind=True, state=state), 0
        unread = [_unread(cursor, looked.rows[0][19], tick) for cursor in free]
        old, new = yield from self._read_for(topic, retaken, [p for p in unread if p.base < p.target], wish, pages)
        busy = {found.range.place.shard for found in known if found.alive}
        if wish.room is not None and wish.room.shut:
            old, new = yield from self._without_room(old, new, wish.room, now)
        whole, alone = yield from self._split(group, old, busy, now)
        if odd := sorted({parking.event.seq or 0 for parking in alone if parking.state == "dead"}):
            yield from self.complete(topic, group, odd, now)
        within = _within(new, wish.most - sum(len(rows) for _, rows in whole))
        taken, ended = yield from self._take(topic, group, member, _moving(free, known), within, lease, now)
        reached = sum(not found.more and found.place.target >= tick for found in within)
        if group.ordered:
            held = {*held, *(parking.key_hash for parking in alone)}
        given, keys = _in_order(whole + taken), frozenset(held)
        return ClaimedRanges(given, tick, behind > reached, keys, len(alone), state, share=fair), ended

    def _retake(
        self, group: GroupRow, left: Sequence[_Known], member: int, lease: timedelta, now: datetime | None
    ) -> Op[list[Range] | None]:
        fresh = {new_token(): found for found in left}
        rows = [(found.range.token, token, found.until) for token, found in fresh.items()]
        values = self.table(rows, "tokens", "fresh", "untils")
        result = yield self.sql["topic.range.retake"].bind(
            **values, member=member, lease=lease.total_seconds(), now=now
        )
        got = {row[0] for row in result.rows}
        if group.ordered and len(got) < len(left):
            yield from self._give_back([(token, fresh[token].range.finished) for token in sorted(got)], now)
            return None
        return [
            found.range._replace(token=token, attempts=found.range.attempts + 1)
            for token, found in fresh.items()
            if token in got
        ]

    def _read_for(
        self, topic: TopicRow, retaken: Sequence[Range], unread: Sequence[Place], wish: _Wish, pages: Pages | None
    ) -> Op[tuple[list[tuple[Range, list[Row]]], list[_Found]]]:
        """The events of ranges, and the first of as many places as the claim may give besides. Where some have none,
        others are looked at."""
        room, size = wish.ranges - len(retaken), min(wish.events, wish.most)
        first, rest = list(unread[:room]), unread[room:]
        wanted = [*(_Wanted(taken.place, LAST) for taken in retaken), *(_Wanted(place, size) for place in first)]
        read = yield from self._pages(topic, wanted, pages, wish.room)
        room = sum(not read[place] for place in first)
        if room and rest:
            peeked = yield from self._pages(topic, [_Wanted(place, 1) for place in rest], None, peek=True)
            full = [place for place in rest if peeked[place]][:room]
            read |= peeked
            read |= yield from self._pages(topic, [_Wanted(place, size) for place in full], pages, wish.room)
            first += full + [place for place in rest if not peeked[place]]
        old = [(taken, read[taken.place]) for taken in retaken]
        cut: Collection[Place] = () if wish.room is None else wish.room.cut
        return old, [_Found(place, read[place], len(read[place]) >= size or place in cut) for place in first]

    def _without_room(
        self, old: Sequence[tuple[Range, list[Row]]], new: Sequence[_Found], room: PageRoom, now: datetime | None
    ) -> Op[tuple[list[tuple[Range, list[Row]]], list[_Found]]]:
        """What is not to be had is given back, with whatever is behind it in its shard."""
        back = [taken for taken, _ in old if taken.place in room.cut]
        if back:
            yield from self._give_back([(taken.token, taken.finished) for taken in back], now)
        kept = [(taken, rows) for taken, rows in old if taken.place not in room.cut]
        return kept, [found for found in new if found.place.shard not in room.shut]

    def _split(
        self, group: GroupRow, retaken: Sequence[tuple[Range, list[Row]]], busy: set[int], now: datetime | None
    ) -> Op[tuple[list[tuple[Range, list[Row]]], list[Parking]]]:
        """What is left of each range, and what was parked of those that were taken too often. In order: not where an
        earlier one of the shard is still to be done, as parked events may be tried at once."""
        whole: list[tuple[Range, list[Row]]] = []
        parkings: list[Parking] = []
        gone: list[int] = []
        for taken, page in retaken:
            rows = self._wanted(group, page)
            if taken.finished:
                rows = [row for row in rows if row[0] not in taken.finished]
            if rows and (taken.attempts < SPLIT or (group.ordered and taken.place.shard in busy)):
                whole.append((taken, rows))
                busy.add(taken.place.shard)
                continue
            gone.append(taken.token)
            attempts = min(taken.attempts, group.max_attempts) - 1
            parkings += [fitting(_lone(row, taken.place.shard, attempts)) for row in rows]
        if gone:
            yield self.sql["topic.range.finish"].bind(tokens=sorted(gone))
        if parkings:
            yield from self.park(group, _behind_each_other(parkings) if group.ordered else parkings, now)
        return whole, parkings

    def _take(
        self,
        topic: TopicRow,
        group: GroupRow,
        member: int,
        cursors: dict[int, _Moving],
        found: Sequence[_Found],
        lease: timedelta,
        now: datetime | None,
    ) -> Op[tuple[list[tuple[Range, list[Row]]], int]]:
        """New ranges, and how many cursors have come to the end of theirs. Where others found something, one that found
        nothing is moved only if that was a while ago: many quiet shards shall not cost a write each for one event
        elsewhere."""
        nothing = not any(rows for _, rows, _ in found)
        taken: list[tuple[Range, list[Row]]] = []
        moves: list[tuple[int, int, int, int | None, int, int]] = []
        passed: list[int] = []
        ended = 0
        for place, rows, more in found:
            ended += not more
            version, low, idle = cursors[place.shard]
            if not rows and not (place.after or idle or nothing):
                continue
            base, target, seq = (place.base, place.target, rows[-1][0]) if more else (place.target, None, 0)
            moves.append((place.shard, version, base, target, seq, low))
            ours = self._wanted(group, rows)
            if len(ours) < len(rows):
                kept = {row[0] for row in ours}
                passed += [row[0] for row in rows if row[0] not in kept]
            if ours:
                held = Range(new_token(), place._replace(upto=rows[-1][0]), 1, frozenset())
                taken.append((held, ours))
        if moves:
            held_now = [
                (range.token, cursors[range.place.shard].version + 1, len(rows), *range.place) for range, rows in taken
            ]
            columns = ("tokens", "numbers", "events", "range_shards", "range_bases", "range_targets", "afters", "uptos")
            yield self.sql["topic.range.take"].bind(
                **self.table(moves, "shards", "versions", "bases", "targets", "seqs", "lows"),
                **self.table(held_now, *columns),
                group=group.id,
                member=member,
                lease=lease.total_seconds(),
                now=now,
            )
        if passed:
            yield from self.complete(topic, group, passed, now)
        return taken, ended

    def _wanted(self, group: GroupRow, rows: list[Row]) -> list[Row]:
        """Without what lies before the group's start."""
        if group.since is None and not group.first:
            return rows
        return [row for row in rows if not group.passes_over(row[0], _created(row))]

    # -- read -------------------------------------------------------------------------------------

    def read(self, topic: TopicRow, places: Sequence[Place], limit: int) -> Op[list[list[Row]]]:
        """The first events of each place, by seq."""
        read = yield from self._pages(topic, [_Wanted(place, limit) for place in places], None)
        return [read[place] for place in places]

    def _pages(
        self,
        topic: TopicRow,
        wanted: Sequence[_Wanted],
        pages: Pages | None,
        room: PageRoom | None = None,
        *,
        peek: bool = False,
    ) -> Op[dict[Place, list[Row]]]:
        """`peek`: only whether there is something."""
        read: dict[Place, list[Row]] = {}
        missing: list[_Wanted] = []
        for place, limit in wanted:
            found = pages.get(topic.id, place, limit) if pages is not None else None
            if found is None:
                missing.append(_Wanted(place, limit))
            else:
                read[place] = found
                if room is not None and found.more:
                    room.cut.add(place)
        if not missing:
            return read
        asked = [(*place, limit) for place, limit in missing]
        values = self.table(asked, "shards", "bases", "targets", "afters", "uptos", "limits")
        usual = 0 if peek else ANY_SIZE if room is None else room.usual(values["limits"])
        result = yield self.log(topic.id)["topic.range.read"].bind(**values, topic=topic.id, usual=usual)
        answers: list[list[Row]] = [[] for _ in missing]
        large = False
        for row in result.rows:
            answers[row[12] - 1].append(row)
            if row[10] is not None:
                large = True
        for rows in answers:
            rows.sort(key=_by_seq)
        answers = [
            rows if len(rows) <= limit else _first(rows, limit)
            for (_, limit), rows in zip(missing, answers, strict=True)
        ]
        if large and room is not None:
            answers = [
                room.fill(place, rows, whole=limit == LAST)
                for (place, limit), rows in zip(missing, answers, strict=True)
            ]
            yield from self._load(topic, missing, answers)
        for (place, limit), page in zip(missing, answers, strict=True):
            more = room is not None and place in room.cut
            read[place] = page if pages is None or peek else pages.put(topic.id, place, limit, page, more=more)
        return read

    def _load(self, topic: TopicRow, wanted: Sequence[_Wanted], answers: Sequence[list[Row]]) -> Op[None]:
        """The payloads that a read has left in the log."""
        absent = [
            (rows, n, place.shard)
            for (place, _), rows in zip(wanted, answers, strict=True)
            for n, row in enumerate(rows)
            if row[10] is not None
        ]
        if not absent:
            return
        asked = [(shard, rows[n][0], rows[n][1]) for rows, n, shard in absent]
        values = self.table(asked, "shards", "seqs", "event_ids")
        found = yield self.log(topic.id)["topic.range.payloads"].bind(**values)
        payloads = dict(found.rows)
        for place, (rows, n, _) in enumerate(absent, 1):
            rows[n] = (*rows[n][:7], payloads.get(place), *rows[n][8:10], None, *rows[n][11:])

    # -- settle -----------------------------------------------------------------------------------

    def settle(self, topic: TopicRow, group: GroupRow, settlement: RangeSettlement, now: datetime | None) -> Op[int]:
        """How many of the given tokens were gone. Completion marks are written with it. Needs a transaction.
        Whatever belongs to a token that is gone is left out: somebody else has it."""
        if topic.topic.tracking == "rows":
            return (yield from self.settle_rows(topic, settlement.parked, now))
        early = yield from self._early(group, settlement)
        if early:
            settlement = _without(settlement, early)
        given = [*settlement.finished, *settlement.returned]
        ours: set[int] = set()
        if settlement.finished:
            finished = sorted(range.token for range, _ in settlement.finished)
            result = yield self.sql["topic.range.finish"].bind(tokens=finished)
            ours.update(row[0] for row in result.rows)
        if settlement.returned:
            done = [(range.token, range.finished.union(seqs)) for range, seqs in settlement.returned]
            ours |= yield from self._give_back(done, now)
        parkings = [fitting(parking) for token, parking in settlement.parkings if token in ours]
        if parkings:
            yield from self.park(group, parkings, now)
        settled = yield from self.settle_parked(group, settlement.parked, now)
        if topic.topic.tracking in ("bitmap", "acks"):
            ended = {seq for range, seqs in given if range.token in ours for seq in seqs}
            waiting = {parking.event.seq for parking in parkings if parking.state != "dead"}
            yield from self.complete(topic, group, sorted(ended - waiting | settled.ended), now)
        return len(given) - len(ours) + len(early) + settled.lost

    def _early(self, group: GroupRow, settlement: RangeSettlement) -> Op[set[int]]:
        """Tokens of ranges in which something failed, with a range before them that is not settled, nor known to the
        member: a fail-over has forgotten that it was. What is parked may be tried at once, so these are given back and
        delivered again in their turn."""
        if not group.ordered or not settlement.parkings:
            return set()
        tokens = sorted({token for token, _ in settlement.parkings})
        before = [*settlement.known, *(range.token for range, _ in settlement.finished)]
        found = yield self.sql["topic.range.early"].bind(tokens=tokens, before=before)
        return {row[0] for row in found.rows}

    def _give_back(self, ranges: Sequence[tuple[int, frozenset[int]]], now: datetime | None) -> Op[set[int]]:
        rows = [(token, ",".join(map(str, sorted(finished)))) for token, finished in ranges]
        result = yield self.sql["topic.range.give"].bind(**self.table(rows, "tokens", "finished"), now=now)
        return {row[0] for row in result.rows}

    def renew(self, group: GroupRow, tokens: Sequence[int], lease: timedelta, now: datetime | None) -> Op[set[int]]:
        """Which ranges and parked events are still ours. What has expired is not, although nobody may have it yet."""
        return (yield from self.prolong(group, tokens, lease, now))[1]

    def prolong(
        self, group: GroupRow, tokens: Sequence[int], lease: timedelta, now: datetime | None
    ) -> Op[tuple[datetime, set[int]]]:
        """Until when, by the database's clock, and which tokens are held until then."""
        result = yield self.sql["topic.range.renew"].bind(
            group=group.id, tokens=sorted(tokens), lease=lease.total_seconds(), now=now
        )
        until, held = result.rows[0]
        return until, set(held)

    def _hold_cursors(self, group: GroupRow) -> Op[None]:
        """Wait for the claims that are under way, and let none begin."""
        counted = yield self.sql["topic.range.cursors"].bind(group=group.id)
        for _ in range(_PATIENCE):
            held = yield self.sql["topic.range.wait"].bind(group=group.id)
            if len(held.rows) >= counted.rows[0][0]:
                return
        raise StoreBusy(f"group {group.name!r} of topic {group.topic!r} is claimed from all the time; try again")

    def abandon(self, group: GroupRow, member: int, known: Sequence[int], now: datetime | None) -> Op[int]:
        """Give back what the member holds under tokens it does not know: after a claim whose reply was lost. How
        many ranges. Needs a transaction. Waits for the claim, if the server is still at it."""
        yield from self._hold_cursors(group)
        result = yield self.sql["topic.range.abandon"].bind(group=group.id, member=member, known=list(known), now=now)
        return result.count


def _choose(
    cursors: Sequence[_Cursor], known: Sequence[_Known], member: int, share: int, wish: _Wish, ordered: bool
) -> tuple[list[_Known], list[_Cursor]]:
    """Which ranges left behind to take, and which cursors to move. `known` is in order inside each shard."""
    held = sorted({found.range.place.shard for found in known if found.owner == member and found.alive})
    ours = set(held[:share]) if ordered else set(held)
    room = share - len(ours)
    left: list[_Known] = []
    free: list[_Cursor] = []
    for cursor in cursors:
        shard = [found for found in known if found.range.place.shard == cursor.shard]
        if ordered and cursor.shard not in ours:
            if (room <= 0 and not cursor.neglected) or any(found.alive for found in shard):
                continue
            room -= 1
        dead = [found for found in shard if not found.alive]
        for found in dead:
            if len(left) == wish.ranges or (left and sum(one.events for one in left) + found.events > wish.most):
                return left, free
            left.append(found)
        free.append(cursor)
    return left, free


def _without(settlement: RangeSettlement, early: Collection[int]) -> RangeSettlement:
    """Ranges that are given back, with what is done and without what failed."""
    failed = {parking.event.seq for token, parking in settlement.parkings if token in early}
    given = [*settlement.finished, *settlement.returned]
    again = [(range, [seq for seq in seqs if seq not in failed]) for range, seqs in given if range.token in early]
    return settlement._replace(
        finished=[pair for pair in settlement.finished if pair[0].token not in early],
        returned=[*(pair for pair in settlement.returned if pair[0].token not in early), *again],
        parkings=[pair for pair in settlement.parkings if pair[0] not in early],
    )


def _moving(cursors: Sequence[_Cursor], known: Sequence[_Known]) -> dict[int, _Moving]:
    lows: dict[int, int] = {}
    for found in known:
        lows.setdefault(found.range.place.shard, found.number)
    return {c.shard: _Moving(c.version, lows.get(c.shard, c.version + 1), c.idle) for c in cursors}


def _first(rows: list[Row], limit: int) -> list[Row]:
    """So many of them, and those behind with the number of the last: where a page ends the next one begins."""
    last = rows[limit - 1][0]
    while limit < len(rows) and rows[limit][0] == last:
        limit += 1
    return rows[:limit]


def _within(found: Sequence[_Found], most: int) -> list[_Found]:
    """No more than `most` events. Places behind that are left alone, unless they are empty."""
    kept = []
    for place, rows, more in found:
        if not rows or most >= len(rows):
            kept.append(_Found(place, rows, more))
        elif most > 0:
            kept.append(_Found(place, _first(rows, most), True))
        most -= len(rows)
    return kept


def _unread(cursor: _Cursor, target: int | None, tick: int) -> Place:
    """Up to where it was going already, or to the tick that is asked for if that is ahead, or to the newest."""
    if cursor.target is None:
        ahead = target if target is not None and cursor.base < target <= tick else tick
        return Place(cursor.shard, cursor.base, ahead, 0, LAST)
    return Place(cursor.shard, cursor.base, cursor.target, cursor.seq, LAST)


def _known(row: Sequence[Any], member: int, known: Collection[int] | None) -> _Known:
    """What the member has and does not know of was left behind: a fail-over forgot that it was settled."""
    token, shard, base, target, after, upto, attempts, finished, until, owner, alive, events, number = row[6:19]
    place = Place(shard, base, target, after, upto)
    done = frozenset(finished or ())
    alive = alive and (owner != member or known is None or token in known)
    return _Known(Range(token, place, attempts, done), until, owner, alive, events - len(done), number)


def _in_order(taken: list[tuple[Range, list[Row]]]) -> list[tuple[Range, list[Row]]]:
    return sorted(taken, key=lambda pair: (pair[0].place.shard, pair[0].place.target, pair[0].place.after))


def _created(row: Row) -> datetime:
    """One that no client can read is not passed over: it becomes a dead letter."""
    try:
        return stored_time(row[11])
    except Undecodable:
        return datetime.max.replace(tzinfo=UTC)


def _lone(row: Row, shard: int, attempts: int) -> Parking:
    event = Event.stored(row)
    error = "its range was taken over too often; it is tried alone"
    return Parking(event, shard, key_hash(lane_key(event)), "retry", attempts, timedelta(), error)


def _behind_each_other(parkings: Sequence[Parking]) -> list[Parking]:
    """In ordered groups only the first of each key may be tried."""
    heads: set[int] = set()
    queue = []
    for parking in parkings:
        behind = parking.state == "retry" and parking.key_hash in heads
        queue.append(parking._replace(state="held") if behind else parking)
        heads.add(parking.key_hash)
    return queue

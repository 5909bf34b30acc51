"""Adopted inboxes at work: every op of an inbox, and what it means for the rows of their table.

    claim     picks up rows that are new, passes over those somebody has locked or processed, counts the attempt there
    mark      sets processed_at in the transaction of the effect, unless somebody was first: then nothing happens
    settle    writes their error and retry_count
    replay    takes processed_at and retry_count back

Whether an inbox is adopted is in its meta table; a store learns it once, and for others nothing changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

from ....codec import JSON
from ....errors import ConfigError, InvalidEvent
from ....event import KEY_HEADER, MAX_SEALED, SEALED_MESSAGE, Event
from ....op import Op, ParamStyle, Query
from ...claims import Claim, HeldRow
from ...event_rows import cut, legible
from ...events import Search
from ...queries import Block, Names, fill, texts
from ...schema import Migration, statements
from ..accept import ANYBODY, InboxAccepts
from ..alerts import InboxAlerts
from ..claim import Arrived, Share
from ..operate import InboxOperate
from ..order import Priority, place_of, position_of, priority_of
from ..settle import Late, Settling
from .adoption import Adoption, ColumnDialect, place, quoted

PICK_UP = 2_000  # rows per look at their table, and only when less waits than could be claimed
MOST = 65_535  # attempts that we count
LOCKED = 1.0  # seconds after which a row that somebody has locked is looked at again
_THEIRS = re.compile(r"(CREATE|ALTER) SEQUENCE \{seq\}|CREATE (OR REPLACE )?VIEW \{seen\}")
_AROUND = re.compile(r"(CREATE|ALTER|DROP) (OR REPLACE )?VIEW|SET @")  # may name the relation of messages
_STATS = re.compile(r"CREATE (OR REPLACE )?VIEW \{stats\}")


_KEYED = f'"{KEY_HEADER}"'
LACKING = {"aggregate_type", "tenant"}  # parts of a Where that no adopted table has
SEARCHED = {"type": "event_type", "key": "aggregate_id", "sender": "sender"}  # those it may have, in these columns

P = ParamSpec("P")
T = TypeVar("T")


def _knowing(op: Callable[Concatenate[Any, P], Op[T]]) -> Callable[Concatenate[Any, P], Op[T]]:
    """The op, run after the store has learned whether its inbox is adopted."""

    def asked(self: InboxAdopted, /, *args: P.args, **named: P.kwargs) -> Op[T]:
        yield from self.know()
        return (yield from op(self, *args, **named))

    return asked


class Verbatim(Query):
    """A text with names of theirs in it, which may look like parameters."""

    __slots__ = ()

    def compiled(self, style: ParamStyle) -> tuple[str, tuple[str, ...]]:
        return (self.text.replace("%", "%%") if style == "format" else self.text), ()


class InboxAdopted(InboxAlerts, InboxAccepts):
    adoption: Adoption | None = None
    _known = False
    _ours: Mapping[str, Query] = MappingProxyType({})  # the queries that an adoption replaces

    @property
    def their_columns(self) -> ColumnDialect:
        columns: ColumnDialect = import_module(f"relaybox.store.inbox.adopted.{self.dialect}").COLUMNS
        return columns

    @property
    def their_queries(self) -> dict[str, Block]:
        return texts("inbox/adopted", self.dialect).queries

    def their_ids(self, ids: Sequence[Any]) -> Any:
        return self.texts(ids)

    # -- knowing ----------------------------------------------------------------------------------

    def facts(self) -> Op[dict[str, str]]:
        found = yield from super().facts()
        self.until = json.loads(found.get("history", "{}")).get("until", 0)
        self.learn(Adoption.from_json(found["adopted"]) if "adopted" in found else None)
        self.former = "former" in found and self.adoption is None
        return found

    def know(self) -> Op[Adoption | None]:
        if not self._known:
            yield from self.facts()
        return self.adoption

    def learn(self, adoption: Adoption | None) -> None:
        self._known = True
        if adoption is None or adoption == self.adoption:
            return
        self.forget()
        self._largest = None  # their rows are as large as they like
        self.event_row = self._their_row
        self.adoption, self._known, self._ours = adoption, True, dict(self.sql)
        self.others_process = "aggregate_id" in adoption.columns
        names = self.their_names(adoption)
        for name, (text, answer) in self.their_queries.items():
            self.sql[name] = Query(name, self._dialect.finish(fill(text, names)), answer)

    def forget(self) -> None:
        """The inbox is gone; another one may take its name."""
        self.sql |= self._ours
        self._largest = MAX_SEALED
        self.event_row = self._dialect.event_row
        self.adoption, self._known, self.others_process = None, False, False

    def _their_row(self, row: Sequence[Any]) -> Sequence[Any]:
        """Their table has no column for the content type: what is encrypted is known by the header of its key."""
        found = self._dialect.event_row(row)
        if found[6] is None and found[7] is not None and found[8] is not None and _KEYED in found[8]:
            return (*found[:6], SEALED_MESSAGE, *found[7:])
        return found

    def their_names(self, adoption: Adoption) -> Names:
        columns = [f"t.{quoted(theirs, self.quote)} AS {ours}" for ours, theirs in adoption.columns.items()]
        return self.slots(
            **self.their_columns.fragments(adoption),
            **{f"their_{ours}": quoted(theirs, self.quote) for ours, theirs in adoption.columns.items()},
            their_table=place(adoption, self.quote),
            their_columns=", ".join(columns),
            their_index=quoted(adoption.index, self.quote),
            most=str(adoption.max_attempts),
            gone="",
            sender_name="sender",
        )

    def fitting(self, text: str) -> str:
        """A migration without what an adopted inbox has otherwise: messages are a view, and so are the stats."""
        if self.adoption is None:
            return text
        stats = self.their_queries["inbox.adopt.stats"][0]
        parts = (stats if _STATS.match(part) else part for part in statements(text))
        return ";\n".join(
            part for part in parts if not _THEIRS.match(part) and ("{message}" not in part or _AROUND.match(part))
        )

    def migrate(self) -> Op[list[Migration]]:
        if not self._known and (yield from self.applied()):
            yield from self.know()
        done = yield from super().migrate()
        if done:
            yield from self.facts()
        return done

    # -- claim ------------------------------------------------------------------------------------

    def _pick(
        self, limit: int, share: Share, priority: Priority | None, now: datetime | None, full: Collection[int]
    ) -> Op[Sequence[tuple[int, int]]]:
        if self.adoption is None:
            return (yield from super()._pick(limit, share, priority, now, full))
        looked = False
        while True:
            picked = yield from super()._pick(limit, share, priority, now, full)
            if len(picked) < limit and not looked:
                looked = True
                if (yield from self.pick_up(now)):
                    continue
            if not picked:
                return []
            free = yield from self._still_waiting([row[0] for row in picked], now)
            if free:
                return [row for row in picked if row[0] in free]

    def pick_up(self, now: datetime | None) -> Op[int]:
        """Rows of theirs that wait and are new here. How many there were."""
        assert self.adoption is not None
        if not (yield self.sql["inbox.adopt.turn"].bind()).rows:
            return 0
        revived = yield self.sql["inbox.adopt.revived"].bind(limit=PICK_UP)
        yield from super().again([row[0] for row in revived.rows], now)
        return len(revived.rows) + (yield from self._take_in("inbox.adopt.pick_up", now, limit=PICK_UP))

    def _take_in(self, name: str, now: datetime | None, **values: Any) -> Op[int]:
        """Rows of theirs that a query finds are messages of ours from now on: they wait, are dead or processed. How
        many."""
        assert self.adoption is not None
        at = self.to_time(now)
        seqs = yield from self.enter(name, **values, now=at)
        if not seqs:
            return 0
        rows: dict[str, list[tuple[Any, ...]]] = {"pending": [], "dead": [], "done": []}
        for row in (yield self.sql["inbox.adopt.picked"].bind(seqs=self.numbers(seqs))).rows:
            event = Event.stored(self.event_row(row))
            state = "done" if row[14] else "pending" if row[12] < self.adoption.max_attempts else "dead"
            rows[state].append(
                (event.seq, *place_of(event), min(max(row[12], 0), MOST), cut(legible(row[13]) or "") or None)
            )
        columns = ("seqs", "hashes", "positions", "priorities", "attempts", "errors")
        for state in ("pending", "dead"):
            if rows[state]:
                yield self.sql[f"inbox.adopt.{state}"].bind(**self.table(sorted(rows[state]), *columns), now=at)
        if rows["done"]:
            yield self.sql["inbox.adopt.done"].bind(seqs=self.numbers([row[0] for row in rows["done"]]))
        return len(seqs)

    def enter(self, name: str, **values: Any) -> Op[Sequence[int]]:
        """Gives rows of theirs a number of ours."""
        return [row[0] for row in (yield self.sql[name].bind(**values)).rows]

    def _still_waiting(self, seqs: Sequence[int], now: datetime | None) -> Op[set[int]]:
        """Which of these wait in their table and nobody is at; the others are put right."""
        rows = (yield self.sql["inbox.adopt.free"].bind(seqs=self.numbers(seqs))).rows
        states = {row[0]: bool(row[1]) for row in rows}
        done = [seq for seq, waits in states.items() if not waits]
        if done:
            yield self.sql["inbox.adopt.done"].bind(seqs=self.numbers(done))
            yield from self._had_their_turn((yield from self._read(done)), now)
        rest = [seq for seq in seqs if seq not in states]
        gone = list[int]()
        if rest:
            there = {row[0] for row in (yield self.sql["inbox.adopt.there"].bind(seqs=self.numbers(rest))).rows}
            gone = [seq for seq in rest if seq not in there]
            if there:
                postponed = {"seqs": self.numbers(sorted(there)), "ttl": LOCKED, "now": self.to_time(now)}
                yield self.sql["inbox.adopt.postpone"].bind(**postponed)
            if gone:
                yield self.sql["inbox.adopt.unknown"].bind(seqs=self.numbers(gone))
        if done or gone:
            yield self.sql["inbox.settle.forget"].bind(seqs=self.numbers([*done, *gone]))
        return {seq for seq, waits in states.items() if waits}

    def _take(self, claim: Claim, seqs: Sequence[int], now: datetime | None) -> Op[list[Arrived]]:
        arrived = yield from super()._take(claim, seqs, now)
        if self.adoption is not None:
            yield from self._report(seqs)
        return arrived

    def _report(self, seqs: Sequence[int]) -> Op[None]:
        """Attempts and errors, into rows that nobody has locked: the next report makes up for what was passed over."""
        if seqs:
            free = yield self.sql["inbox.adopt.free"].bind(seqs=self.numbers(seqs))
            yield self.sql["inbox.adopt.report"].bind(seqs=self.numbers([row[0] for row in free.rows]))

    def release_messages(self, held: Sequence[HeldRow], now: datetime | None) -> Op[int]:
        released = yield from super().release_messages(held, now)
        if self.adoption is not None:
            yield from self._report([one.seq for one in held])
        return released

    # -- settle -----------------------------------------------------------------------------------

    def mark(self, held: HeldRow, event: Event, now: datetime | None) -> Op[bool]:
        marked = yield from super().mark(held, event, now)
        if self.adoption is None or not marked:
            return marked
        if not (yield from self._open([held.seq])):
            return False
        yield self.sql["inbox.adopt.processed"].bind(seqs=self.numbers([held.seq]), now=self.to_time(now))
        return True

    def _open(self, seqs: Sequence[int]) -> Op[set[int]]:
        return {row[0] for row in (yield self.sql["inbox.adopt.unprocessed"].bind(seqs=self.numbers(seqs))).rows}

    def lock_messages(self, held: Sequence[HeldRow]) -> Op[set[int]]:
        ours = yield from super().lock_messages(held)
        return ours if self.adoption is None else (yield from self._open(sorted(ours)))

    def mark_all(self, held: Sequence[HeldRow], now: datetime | None) -> Op[None]:
        yield from super().mark_all(held, now)
        if self.adoption is not None:
            seqs = self.numbers([one.seq for one in held])
            yield self.sql["inbox.adopt.processed"].bind(seqs=seqs, now=self.to_time(now))

    def settle_messages(self, settling: Settling, now: datetime | None) -> Op[Late]:
        late = yield from super().settle_messages(settling, now)
        if self.adoption is not None:
            yield from self._report([one.seq for part in (settling.retry, settling.dead) for one in part])
        return late

    # -- operate ----------------------------------------------------------------------------------

    def counts(self) -> Op[tuple[int, int, int]]:
        """What was not picked up yet waits too."""
        pending, seen, dead = yield from super().counts()
        if (yield from self.know()) is not None:
            pending += int((yield self.sql["inbox.adopt.waiting"].bind()).rows[0][0])
        return pending, seen, dead

    def numbers_of(self, ids: Sequence[str], sender: str | None) -> Op[list[int]]:
        """Rows that are asked for by their ids need not have been picked up."""
        adoption = yield from self.know()
        found = yield from super().numbers_of(ids, sender)
        if adoption is None or len(found) == len(ids):
            return found
        native = self.their_ids(adoption.native(self.their_columns, ids))
        if not (yield from self._take_in("inbox.adopt.recall", None, ids=native)):
            return found
        return (yield from super().numbers_of(ids, sender))

    def search(self, search: Search) -> dict[str, Any]:
        adoption = self.adoption
        if adoption is not None:
            there = {ours for ours, column in SEARCHED.items() if column in adoption.columns}
            lacking = [name for name in search.where.given if name in LACKING | (SEARCHED.keys() - there)]
            if lacking:
                raise ConfigError(
                    f"{adoption.table!r} was adopted without a column for {lacking[0]}; leave it out of the Where"
                )
        return super().search(search)

    def again(self, seqs: Sequence[int], now: datetime | None) -> Op[int]:
        """Their row waits again too."""
        count = yield from super().again(seqs, now)
        if count and self.adoption is not None:
            yield self.sql["inbox.adopt.reset"].bind(seqs=self.numbers(seqs))
        return count

    def give_up(self, errors: Mapping[int, str | None], now: datetime | None) -> Op[None]:
        yield from super().give_up(errors, now)
        if self.adoption is not None:
            yield from self._report(list(errors))

    def remember(self, seqs: Sequence[int], now: datetime | None) -> Op[None]:
        if self.adoption is None:  # their table keeps its history
            yield from super().remember(seqs, now)

    def purge_dead(self, ttl: timedelta, limit: int, now: datetime | None) -> Op[int]:
        """Their dead rows stay dead while they are there; only letters whose rows are gone go."""
        if (yield from self.know()) is None:
            return (yield from super().purge_dead(ttl, limit, now))
        gone = [row[0] for row in (yield self.sql["inbox.adopt.orphans"].bind(limit=limit)).rows]
        if gone:
            yield self.sql["inbox.replay.undead"].bind(seqs=self.numbers(gone))
            yield self.sql["inbox.adopt.unknown"].bind(seqs=self.numbers(gone))
        return len(gone)

    # Ops that may be the first of their store, and begin with a query that an adoption replaces.
    newest = _knowing(InboxOperate.newest)
    events = _knowing(InboxOperate.events)
    count_events = _knowing(InboxOperate.count_events)
    purge_done = _knowing(InboxOperate.purge_done)
    purge_seen = _knowing(InboxOperate.purge_seen)
    purgeable = _knowing(InboxOperate.purgeable)

    # -- accept -----------------------------------------------------------------------------------

    def check_sealing(self) -> Op[None]:
        """ConfigError unless what is encrypted can be stored here."""
        if (adoption := (yield from self.know())) is not None:
            sealable(adoption, self.their_columns)

    def see(self, ids: Sequence[str], sender: str, now: datetime | None) -> Op[set[str]]:
        """Which of these ids were never accepted before; from now on they were."""
        values = {"event_ids": self.texts(ids), "sender": sender, "now": self.to_time(now)}
        result = yield self.sql["inbox.adopt.seen"].bind(**values)
        return {row[0] for row in result.rows}

    def insert(self, events: Sequence[Event], sender: str, now: datetime | None) -> Op[set[str]]:
        if (yield from self.know()) is not None:
            return (yield from self.insert_theirs(events, sender, now))
        if self.former:
            asked = self.texts([event.id for event in events])
            former = {row[0] for row in (yield self.sql["inbox.accept.former"].bind(event_ids=asked)).rows}
            events = [event for event in events if event.id not in former]
        return (yield from self.insert_new(events, sender, now)) if events else set()

    def insert_theirs(self, events: Sequence[Event], sender: str, now: datetime | None) -> Op[set[str]]:
        """One chunk of distinct events into their table. Returns the ids that were new."""
        adoption = self.adoption
        assert adoption is not None
        values = [their_values(adoption, self.their_columns, event, sender) for event in events]
        new = yield from self.see([event.id for event in events], ANYBODY, now)
        native = self.their_ids([value["id"] for value in values])
        new -= {row[0] for row in (yield self.sql["inbox.adopt.known"].bind(ids=native)).rows}
        for event, value in zip(events, values, strict=True):
            if event.id in new:
                yield self.sql["inbox.adopt.insert"].bind(**value, now=self.to_time(now))
        return new

    def accept_or_bury(
        self, events: Sequence[Event], letters: Mapping[str, str], sender: str, now: datetime | None
    ) -> Op[list[bool]]:
        adoption = yield from self.know()
        if adoption is None:
            return (yield from super().accept_or_bury(events, letters, sender, now))
        answers = yield from self.accept(events, sender, now)
        for event, new in zip(events, answers, strict=True):
            if new and event.id in letters:
                ids = self.their_ids(adoption.native(self.their_columns, [event.id]))
                error, attempts = cut(letters[event.id]), adoption.max_attempts
                yield self.sql["inbox.adopt.bury"].bind(ids=ids, error=error, attempts=attempts)
        return answers


def sealable(adoption: Adoption, columns: ColumnDialect) -> None:
    payload, headers = adoption.types.get("payload"), adoption.types.get("headers")
    if payload is None or columns.kind(payload) != "bytes" or headers is None:
        raise ConfigError(
            f"{adoption.table!r} was adopted without a payload column of bytes and a headers column, which encrypted "
            "messages need; accept without vault=, into an inbox of relaybox's own, or adopt it with such columns"
        )


def their_values(adoption: Adoption, columns: ColumnDialect, event: Event, sender: str) -> dict[str, Any]:
    """An event for their columns; what must not be lost needs one."""
    kinds = {name: columns.kind(type) for name, type in adoption.types.items()}
    if event.content_type == SEALED_MESSAGE:
        sealable(adoption, columns)
    there = {
        "event_type": event.type,
        "payload": event.body,
        "aggregate_id": event.key,
        "sender": sender or None,
        "trace_id": event.headers.get("trace_id"),
        "headers": event.headers_text,
        "sequence": position_of(event),
        "priority": priority_of(event) or None,
    }
    for name in ("event_type", "payload", *(["aggregate_id"] if event.key is not None else [])):
        if name not in kinds:
            raise InvalidEvent(
                f"{adoption.table!r} was adopted without a column for {name}, which event {event.id} has; "
                "adopt it with one, or let those insert who do so today"
            )
    native = adoption.native(columns, [event.id])
    if not native:
        raise InvalidEvent(f"event id {event.id!r} does not fit the {adoption.types['id']} ids of {adoption.table!r}")
    if kinds["payload"] != "bytes":
        there["payload"] = _as_text(event, adoption, json=kinds["payload"] == "json")
    return {"id": native[0], **{name: value for name, value in there.items() if name in kinds}}


def _as_text(event: Event, adoption: Adoption, *, json: bool) -> str:
    try:
        if not json or event.content_type == JSON:
            return event.body.decode()
    except UnicodeDecodeError:
        pass
    raise InvalidEvent(
        f"event {event.id} of {event.content_type} does not fit the {adoption.types['payload']} payloads of "
        f"{adoption.table!r}"
    )

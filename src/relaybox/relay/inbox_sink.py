"""The inbox of another service: messages go straight into its database, each of them once.

    InboxSink("postgresql://relay:secret@billing-db/billing", inbox="orders_inbox", sender="shop")

A publish is one transaction: all of it is stored, or nothing. The inbox knows every id it has ever accepted, so what is
sent again after a lost reply, or by a relay that was cut off, changes nothing. That is also why a transaction that was
given up is not waited for: whatever becomes of it, sending again is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self
from urllib.parse import parse_qsl

from ..brokers.batches import grouped
from ..brokers.options import check_least, typed
from ..brokers.spi import Answer, Features, Message
from ..codec import JSON_CODEC, headers_to_text
from ..drivers import open_async, parse
from ..drivers.spi import AsyncRunner
from ..errors import (
    BrokerUnavailable,
    Closed,
    ConfigError,
    ConnectionLost,
    DeliveryError,
    Reject,
    RelayboxError,
    SchemaMissing,
    StoreError,
    Undecodable,
)
from ..event import PLACED, Event
from ..op import Op, T
from ..redaction import masked
from ..sealing import arun_beside
from ..store.inbox import InboxStore, InboxTables, check_sender, open_inbox_store
from ..vault import Vault

PROBE_SECONDS = 2.0  # a connection into nowhere must not keep the next probe waiting
OPEN_SECONDS = 5.0
CLOSE_SECONDS = 2.0
LONGEST = 255  # characters of a text column of an inbox
OPTIONS = ("inbox", "schema", "sender", "connections")


class _NoInbox(DeliveryError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class InboxSink:
    """Destinations are names of inboxes in one database. Their tables are made by the service that owns it.

    target       a URL or an async SQLAlchemy engine
    inbox        everything goes into this one, whatever the destination of a message is
    schema       where the inboxes are, unless in the default schema
    sender       who sends: a duplicate is the same id of the same sender. The same for all relays of an outbox
    connections  most connections, and so most publishes at a time
    vault        the inbox's, on its database: what is published is stored encrypted with its keys
    """

    name = "inbox"
    features = Features(keyed_order=True, dedup=True, sequences=True)

    def __init__(
        self,
        target: Any,
        *,
        inbox: str | None = None,
        schema: str | None = None,
        sender: str = "",
        connections: int = 4,
        vault: Vault | None = None,
    ) -> None:
        if isinstance(target, str) and parse(target).in_memory:
            raise ConfigError("an in-memory SQLite database belongs to one connection; use a file")
        check_least(1, connections=connections)
        self._target = target
        self._inbox = inbox
        self._schema = schema
        self._sender = check_sender(sender)
        self._connections = connections
        self._vault = vault
        self._db: AsyncRunner = open_async(target, size=connections)
        self._store = lru_cache(256)(self._open_store)  # destinations may come from a template
        self._probe = self._open_store(inbox or "inbox")
        self._running: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[Any]] = set()
        self._closed = False

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any]) -> Self:
        """`inbox+` before a database URL. Of its query, what is no option of ours belongs to the database."""
        target, _, query = url.partition("+")[2].partition("?")
        pairs = [pair for pair in query.split("&") if pair]
        ours = [pair for pair in pairs if pair.partition("=")[0] in OPTIONS]
        if theirs := [pair for pair in pairs if pair not in ours]:
            target += "?" + "&".join(theirs)
        return cls(target, **typed(cls, {**dict(parse_qsl("&".join(ours))), **options}))

    def __repr__(self) -> str:
        where = masked(self._target) if isinstance(self._target, str) else type(self._target).__name__
        return f"InboxSink({where!r})"

    def _open_store(self, name: str) -> InboxStore:
        return open_inbox_store(self._db.dialect, InboxTables(name, self._schema))

    # Publishing

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        missing: dict[str, DeliveryError] = {}
        while True:
            answers = self._judged(messages, missing)
            due = [message for message, answer in zip(messages, answers, strict=True) if answer is None]
            if not due:
                return answers
            try:
                letters: dict[str, str] = {}
                inboxes = await self._sealed(due, letters)
                await self._run(self._accept(inboxes, letters))
                return answers
            except _NoInbox as error:
                missing[error.name] = DeliveryError(str(error))

    def _judged(self, messages: Sequence[Message], missing: Mapping[str, DeliveryError]) -> list[Answer]:
        """None for what can go out: its inbox is there, and no earlier message of its key has failed."""
        failed: set[str | None] = set()
        answers: list[Answer] = []
        for message in messages:
            answer = missing.get(self._inbox or message.destination)
            if answer is None:
                answer = _unfit(message)
            if answer is None and message.key is not None and message.key in failed:
                answer = DeliveryError("held back: an earlier message of its key failed in this batch")
            if answer is not None:
                failed.add(message.key)
            answers.append(answer)
        return answers

    async def _sealed(self, messages: Sequence[Message], letters: dict[str, str]) -> Mapping[str, Sequence[Event]]:
        """What goes into each inbox, as it is stored there. Into `letters`: why a message becomes a dead letter."""
        events = [received(message) for message in messages]
        if self._vault is not None:
            senders = [self._sender] * len(events)
            steps = self._vault.seal_messages(events, senders, shown=(), codec=JSON_CODEC, letters=letters)
            try:
                events = await arun_beside(steps, self._vault)
            except Exception as error:  # of the database, or of a key management service: nobody's own
                reason = str(error) if isinstance(error, RelayboxError) else type(error).__name__
                raise BrokerUnavailable(f"{self!r} cannot encrypt: {reason}") from None
        names = [self._inbox or message.destination for message in messages]
        found = grouped(zip(names, events, strict=True), lambda pair: pair[0])
        return {name: [event for _, event in pairs] for name, pairs in found.items()}

    def _accept(self, inboxes: Mapping[str, Sequence[Event]], letters: Mapping[str, str]) -> Op[None]:
        for name in sorted(inboxes):  # in one order always: no two transactions wait for each other
            try:
                yield from self._store(name).accept_or_bury(inboxes[name], letters, self._sender, None)
            except ConfigError as error:
                raise _NoInbox(name, f"{name!r} cannot be an inbox: {error}") from None
            except SchemaMissing:
                raise _NoInbox(
                    name,
                    f"there is no inbox {name!r} here, or it is older than this relay; the service that owns the "
                    f"database must run migrate() of Inbox(…, {name!r})",
                ) from None

    async def open(self) -> None:
        await self._check(OPEN_SECONDS)

    async def probe(self) -> None:
        await self._check(PROBE_SECONDS)

    async def _check(self, seconds: float) -> None:
        if await self._run(self._probe.read_only(), seconds):
            raise BrokerUnavailable(f"{self!r} is read-only: connect to the primary")

    # The connection

    async def _run(self, op: Op[T], seconds: float | None = None) -> T:
        """In a transaction. Every refusal of the database but a missing table is an outage: what in a message could
        cause one has been refused before, and no event should die of it."""
        if self._closed:
            raise Closed(f"{self!r} is closed; make a new one")
        db = self._db
        task = _start(db.run(op), self._running)
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            task.cancel()
        if task.cancelled():
            raise BrokerUnavailable(f"{self!r} was closed before the database had answered")
        if not task.done():
            self._reconnect(db)
            raise BrokerUnavailable(f"{self!r} did not answer within {seconds:g} s")
        try:
            return task.result()
        except (StoreError, Closed) as error:  # closed: the pool, because another publish found it dead
            if isinstance(error, ConnectionLost):
                self._reconnect(db)
            raise BrokerUnavailable(f"{self!r}: {error}") from None

    def _reconnect(self, db: AsyncRunner) -> None:
        """What lies idle in a pool is as dead as the connection that failed, and would be found out one by one."""
        if db is self._db and not self._closed:
            self._db = open_async(self._target, size=self._connections)
            _start(db.close(), self._closing)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self._running:
            task.cancel()
        _start(self._db.close(), self._closing)
        await asyncio.wait(self._running | self._closing, timeout=CLOSE_SECONDS)


def _start(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    def ended(task: asyncio.Task[T]) -> None:
        tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: asyncio would report one that nobody waited for

    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(ended)
    return task


def _unfit(message: Message) -> DeliveryError | None:
    """What no inbox can store, and would refuse together with the rest of the batch: a row of another program's."""
    event = message.event
    if message.id.startswith(PLACED):
        return Reject(f"id {message.id!r} begins with {PLACED!r}, which no sender may write")
    if not (event.id and event.type):
        return Reject("it has no id or no type, which every message of an inbox has")
    for text in (event.id, event.type, event.aggregate_type, message.key, event.tenant, message.content_type):
        if text and (len(text) > LONGEST or "\0" in text):
            return Reject(f"{text[:40]!r} has a NUL or more than {LONGEST} characters, which no inbox stores")
    try:
        _ = event.occurred_at  # read lazily, and it may be no time
    except Undecodable as error:
        return error
    return None


def received(message: Message) -> Event:
    """The event as the receiver shall see it. Of the attributes, those that have a column are not kept twice."""
    event = message.event
    columns = {
        "event_id": event.id,
        "event_type": event.type,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": message.key,
        "tenant": event.tenant,
    }
    headers = {name: value for name, value in message.attributes.items() if columns.get(name) != value}
    return Event.stored(
        (
            None,
            event.id,
            event.type,
            event.aggregate_type,
            message.key,
            event.tenant,
            message.content_type,
            message.body,
            headers_to_text(headers) if headers else None,
            event.occurred_at,
            None,
            None,
        )
    )

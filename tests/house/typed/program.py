"""A program that uses every name of `relaybox`, `relaybox.types` and `relaybox.errors`: type checkers find nothing.

It is read, never run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Unpack, assert_type

import aiosqlite
import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from relaybox import (
    ALL,
    AsyncGuard,
    AsyncInbox,
    AsyncIngest,
    AsyncMaintainer,
    AsyncOutbox,
    AsyncRelay,
    AsyncReplica,
    BatchFailed,
    CommitUnknown,
    ConfigError,
    Contract,
    Contracts,
    Delivery,
    Event,
    Feed,
    Guard,
    Inbox,
    Ingest,
    InvalidEvent,
    Keyring,
    LeaseLost,
    Listeners,
    Maintainer,
    NotFound,
    NoTransaction,
    Outbox,
    Reject,
    Relay,
    RelayboxError,
    Replica,
    Retry,
    RetryLater,
    Settings,
    StartFrom,
    StoreError,
    Topic,
    Vault,
    Where,
    erase,
)
from relaybox.spi import Interceptor, Sink, Source, WriterHook
from relaybox.types import (
    LIMITS,
    AdminSettings,
    Adoption,
    Advice,
    AsyncBatch,
    AsyncConsumer,
    AsyncDeadLetters,
    AsyncEvents,
    AsyncFeeds,
    AsyncGroup,
    AsyncHandle,
    AsyncKeys,
    AsyncProducer,
    AsyncService,
    AsyncTieredInbox,
    AsyncTopics,
    AsyncTransaction,
    Audit,
    AuditEntry,
    Batch,
    BatchDecorator,
    BlockedKey,
    Columns,
    Consumer,
    ContractOptions,
    Counts,
    DatabaseRole,
    DeadLetter,
    DeadLetters,
    Decorator,
    DeliverySettings,
    DeltaRow,
    Drift,
    Dropped,
    Duration,
    Erasure,
    EventOptions,
    Events,
    FeedInfo,
    Feeds,
    FeedSchedule,
    FeedSettings,
    FeedSource,
    FeedStatus,
    Finding,
    Group,
    GroupInfo,
    GuardSettings,
    Handle,
    Health,
    InboxInfo,
    InboxSettings,
    InboxStatus,
    IngestSettings,
    Instance,
    Keys,
    Kms,
    Lag,
    Limits,
    Listener,
    ListenerOptions,
    ListenSettings,
    MasterKey,
    MemberInfo,
    Migration,
    MovePlan,
    Order,
    OrderSettings,
    OutboxSettings,
    Preview,
    Priority,
    Producer,
    Progress,
    Reading,
    Refreshed,
    RelaySettings,
    ReplicaSettings,
    ReplicaStatus,
    Report,
    Retention,
    Service,
    Share,
    Status,
    StoredEvent,
    TenantSettings,
    Tier,
    TieredInbox,
    TopicInfo,
    TopicOptions,
    Topics,
    TopicSettings,
    Transaction,
    TypeStats,
)


@dataclass
class OrderPlaced:
    id: int


# -- events and listeners -----------------------------------------------------------------------------


def order_placed(number: int, **options: Unpack[EventOptions]) -> Event[OrderPlaced]:
    return Event.of(OrderPlaced(number), **options)


def registered(listeners: Listeners, **options: Unpack[ListenerOptions]) -> Decorator[OrderPlaced, Delivery]:
    return listeners.on(OrderPlaced, **options)


def together(listeners: Listeners) -> BatchDecorator[OrderPlaced]:
    return listeners.on_batch(OrderPlaced, size=10)


def names(listeners: Listeners) -> list[str]:
    found: list[Listener] = listeners.all()
    return [one.name for one in found]


def agreed(contracts: Contracts, **options: Unpack[ContractOptions]) -> None:
    contracts.event("OrderPlaced", **options)(OrderPlaced)


def kept(name: str, keep: Duration, **options: Unpack[TopicOptions]) -> Topic:
    return Topic.pub_sub(name, **options).critical(keep)


def prepared(outbox: Outbox, guard: Guard, role: DatabaseRole) -> tuple[list[Migration], list[str], list[Finding]]:
    return outbox.migrate(), outbox.grants(role, to="shop"), guard.check_retention(outbox_retention="30d")


def kept_by(master: MasterKey) -> Keyring:
    return Keyring({"2026": master})


assert_type(Event.of(OrderPlaced(7), key="order-7"), Event[OrderPlaced])
assert_type(Event.of(OrderPlaced(7)).payload.id, int)
assert_type(Event("OrderPlaced", {"id": 7}), Event[dict[str, int]])

listeners = Listeners()


@listeners.on(OrderPlaced, retry=Retry(attempts=5, base="1s"), timeout=timedelta(seconds=3))
def confirm(event: Event[OrderPlaced]) -> None:
    assert_type(event.payload.id, int)


@listeners.on("OrderCancelled", model=OrderPlaced)
async def cancel(event: Event[OrderPlaced], delivery: Delivery) -> None:
    assert_type(delivery.attempts, int)


@listeners.on("Anything")
def anything(event: Event) -> None: ...


@listeners.on_batch(OrderPlaced, size=500, aggregate_type="Order")
def many(events: Sequence[Event[OrderPlaced]]) -> None:
    assert_type(events[0].payload, OrderPlaced)


received = Listeners[Session]()


@received.on(OrderPlaced)
def invoice(event: Event[OrderPlaced], session: Session) -> None:
    session.add(event.payload)


class Noted(Interceptor, WriterHook):
    def before_dispatch(self, delivery: Delivery) -> None: ...

    def before_write(self, events: Sequence[Event]) -> Sequence[Event]:
        return events


# -- outboxes -----------------------------------------------------------------------------------------

settings = Settings(
    delivery=DeliverySettings(workers=8, retry=Retry(attempts=None)),
    order=OrderSettings(shards=32),
    outbox=OutboxSettings(retention="30d"),
    tenants=TenantSettings(max_waiting=100_000, over="mark"),
    inbox=InboxSettings(),
    topics=TopicSettings.for_rate(1_000),
    relay=RelaySettings(batch=100),
    ingest=IngestSettings(),
    replica=ReplicaSettings(poll="5s"),
    feeds=FeedSettings(at_once=2),
    guard=GuardSettings(),
    admin=AdminSettings(require_reason=True),
    listen=ListenSettings(token_file="/run/secrets/pages"),
)


audit: Audit = {"reason": "the invoice table is repaired", "actor": "ada"}


def told(entry: AuditEntry, preview: Preview, report: Report) -> tuple[str, Preview, int]:
    return entry.reason, preview, report.deleted


def outbox() -> None:
    with Outbox("sqlite:///shop.db", hooks=[Noted()], settings=settings) as outbox:
        outbox.migrate()
        service = outbox.deliver(listeners, ordered=True, on_exhausted="park")
        assert_type(service, Service)
        with service, outbox.transaction() as transaction:
            assert_type(transaction, Transaction)
            assert_type(outbox.write(transaction, Event.of(OrderPlaced(7))), int | None)
            assert_type(service.drain(timeout="30s"), Counts)
            assert_type(service.health(), Health)
        assert_type(outbox.resolve(["id"]), dict[str, bool])


async def async_outbox() -> None:
    async with AsyncOutbox("postgresql://localhost/shop") as outbox:
        await outbox.migrate()
        service = outbox.deliver(anything, alone=True)
        assert_type(service, AsyncService)
        async with service, outbox.transaction() as transaction:
            assert_type(transaction, AsyncTransaction)
            assert_type(await outbox.write_all(transaction, [Event("OrderPlaced", {})]), list[int | None])
            assert_type(await service.once(), Counts)
        assert_type(await outbox.resolve(["id"]), dict[str, bool])


def operate(outbox: Outbox, dead: DeadLetters, events: Events, keys: Keys, **audit: Unpack[Audit]) -> None:
    limits = Limits(oldest=("30s", "5m"), dead=LIMITS.dead)
    assert_type(outbox.health(limits), Health)
    assert_type(outbox.status(), Status)
    assert_type(outbox.instances(), list[Instance])
    assert_type(outbox.audit(), list[AuditEntry])
    assert_type(outbox.dead.list(Where(type="A", since="2h")), list[DeadLetter])
    assert_type(dead.get("id", sender="shop"), DeadLetter | None)
    assert_type(dead.replay(ALL, progress=shown, **audit), int)
    assert_type(events.list(state="done"), list[StoredEvent])
    assert_type(events.get("id"), StoredEvent | None)
    assert_type(events.discard(["id"], dry_run=True), int)
    assert_type(keys.list(), list[BlockedKey])
    assert_type(keys.release("k", reason="repaired"), bool)
    assert_type(outbox.purge(done="7d", progress=shown), int)
    group = outbox.topics.group("orders", "mail")
    assert_type(group.dead.replay(Where(key="k")), int)
    assert_type(group.events.list(state="open"), list[StoredEvent])
    assert_type(group.keys.list(), list[BlockedKey])


def shown(progress: Progress) -> None:
    print(progress.done, progress.total, progress.what)


async def async_operate(outbox: AsyncOutbox, dead: AsyncDeadLetters, events: AsyncEvents, keys: AsyncKeys) -> None:
    assert_type(await outbox.health(), Health)
    assert_type(await dead.list(), list[DeadLetter])
    assert_type(await outbox.dead.count(Where(key="k")), int)
    assert_type(await events.replay(Where(ids=["id"]), reason="repaired", actor="ann"), int)
    assert_type(await keys.release("k"), bool)
    group = outbox.topics.group("orders", "mail")
    assert_type(await group.dead.list(), list[DeadLetter])
    assert_type(await group.events.discard("id"), int)
    assert_type(await group.keys.release("k"), bool)


def sync_handles(
    outbox: Outbox,
    event: Event,
    file: sqlite3.Connection,
    file_cursor: sqlite3.Cursor,
    postgres: psycopg.Connection[Any],
    cursor: psycopg.Cursor[Any],
    session: Session,
    sessions: scoped_session[Session],
    connection: Connection,
) -> None:
    for handle in (file, file_cursor, postgres, cursor, session, sessions, connection):
        wrapped: Handle = handle
        outbox.write(wrapped, event)
    with outbox.transaction(postgres) as transaction:
        outbox.write_all(transaction, [event])


async def async_handles(
    outbox: AsyncOutbox,
    event: Event,
    file: sqlite3.Connection,
    loop_file: aiosqlite.Connection,
    postgres: psycopg.AsyncConnection[Any],
    cursor: psycopg.AsyncCursor[Any],
    session: AsyncSession,
    sessions: async_scoped_session[AsyncSession],
    connection: AsyncConnection,
) -> None:
    for handle in (file, loop_file, postgres, cursor, session, sessions, connection):
        wrapped: AsyncHandle = handle
        await outbox.write(wrapped, event)
    async with outbox.transaction(postgres) as transaction:
        await outbox.write_all(transaction, [event])


# -- guards, contracts, topics, processes -------------------------------------------------------------

contracts = Contracts()
contract: Contract = contracts.add("OrderPlaced", to="orders", aggregate_type="Order", payload=OrderPlaced)


def guarded(guard: Guard, session: Session, event: Event) -> None:
    with guard(event) as first:
        assert_type(first, bool)
    assert_type(guard.mark(session, event), bool)


async def async_guarded(guard: AsyncGuard, session: AsyncSession, event: Event) -> None:
    async with guard(event) as first:
        assert_type(first, bool)
    assert_type(await guard.mark(session, event), bool)


def processes(outbox: Outbox, sink: Sink, source: Source, inbox: Inbox) -> None:
    Topic.pub_sub("orders", retention=timedelta(days=7))
    assert_type(Ingest(source, inbox, sender="shop", reading=Reading()).once(), Counts)
    with Relay(outbox, sink, to="orders", contracts=contracts) as relay, Maintainer(outbox) as maintainer:
        assert_type(relay.once(), Counts)
        assert_type(maintainer.health(), Health)


async def async_processes(outbox: AsyncOutbox, sink: Sink, source: Source, inbox: AsyncInbox) -> None:
    await AsyncIngest("kafka://localhost/orders?group=billing", inbox).run(listen="127.0.0.1:9400")
    async with AsyncRelay(outbox, sink, to="orders") as relay, AsyncMaintainer(outbox) as maintainer:
        assert_type(await relay.drain(), Counts)
        assert_type(maintainer.health(), Health)


# -- topics -------------------------------------------------------------------------------------------


def topics(outbox: Outbox, session: Session) -> None:
    all_topics: Topics = outbox.topics
    assert_type(all_topics.configure(Topic.pub_sub("orders", retention="7d", spread=8), reason="hot"), TopicInfo)
    producer: Producer[OrderPlaced] = all_topics.producer("orders", OrderPlaced)
    assert_type(producer.send(session, OrderPlaced(7), key="order-7"), int | None)
    mail: Group = all_topics.group("orders", "mail", start=StartFrom.earliest(), ordered=False, silence="5m")
    assert_type(mail.create(if_not_exists=True), GroupInfo)
    members: Sequence[MemberInfo] = mail.info().members
    assert_type(members[0].name, str)
    assert_type(mail.deliver(listeners), Service)
    consumer: Consumer[OrderPlaced] = mail.consumer(model=OrderPlaced)
    with consumer, consumer.poll(500, wait=5) as batch:
        assert_type(batch, Batch[OrderPlaced])
        assert_type(batch[0].payload.id, int)
        consumer.commit(batch, failed={batch[0]: "no"})
    assert_type(mail.lag(), Lag)
    assert_type(mail.health(), Health)
    assert_type(mail.backfill(pace="fast"), Progress)
    mail.pause(reason="a look", actor="ann")
    mail.cancel(wait="30s")
    assert_type(all_topics.groups("orders"), list[GroupInfo])
    assert_type(all_topics.advise("orders"), Advice)
    assert_type(all_topics.move("orders", tracking="bitmap", dry_run=True), MovePlan)


async def async_topics(outbox: AsyncOutbox, session: AsyncSession) -> None:
    all_topics: AsyncTopics = outbox.topics
    producer: AsyncProducer[OrderPlaced] = all_topics.producer("orders", OrderPlaced)
    assert_type(await producer.send(session, OrderPlaced(7), key="order-7"), int | None)
    jobs: AsyncGroup = all_topics.queue("jobs", retry=Retry(attempts=3))
    assert_type(jobs.deliver(listeners), AsyncService)
    assert_type(await jobs.info(), GroupInfo)
    consumer: AsyncConsumer[OrderPlaced] = jobs.consumer(model=OrderPlaced)
    async with consumer, await consumer.poll() as batch:
        assert_type(batch, AsyncBatch[OrderPlaced])


# -- feeds --------------------------------------------------------------------------------------------


def feeds(outbox: Outbox, session: Session, event: Event) -> None:
    all_feeds: Feeds = outbox.feeds
    by_order = FeedSource("order_id", resolve="SELECT customer FROM touched JOIN orders ON id = order_id")
    feed = Feed("totals", "SELECT 1 AS customer", key="customer", sources={"orders": "customer", "item": by_order})
    assert_type(all_feeds.create(feed, reason="a report"), FeedInfo)
    assert_type(all_feeds.refresh(session, "totals"), Refreshed)
    assert_type(all_feeds.refresh(None, "totals", full=True).delta, int | None)
    assert_type(all_feeds.status("totals"), FeedStatus)
    assert_type(all_feeds.status("totals").schedule, FeedSchedule)
    assert_type(all_feeds.verify("totals"), Drift)
    for row in all_feeds.rows(event):
        assert_type(row, DeltaRow)
    assert_type(all_feeds.drop("totals", actor="ann"), bool)


async def async_feeds(outbox: AsyncOutbox, session: AsyncSession, event: Event) -> None:
    all_feeds: AsyncFeeds = outbox.feeds
    assert_type(await all_feeds.refresh(session, "totals"), Refreshed)
    async for row in all_feeds.rows(event):
        assert_type(row.row["customer"], Any)


def replicas(outbox: Outbox, session: Session, event: Event) -> None:
    replica = Replica("mysql://localhost/crm", "totals", feed="totals", source=outbox, columns={"customer": "integer"})
    assert_type(replica.migrate(), list[Migration])
    assert_type(replica.apply(session, event), bool)
    assert_type(replica.status(), ReplicaStatus)
    assert_type(replica.follow(), Service)


async def async_replicas(session: AsyncSession, event: Event) -> None:
    async with AsyncReplica("sqlite:///crm.db", "totals", feed="totals", key="customer") as replica:
        assert_type(await replica.apply(session, event), bool)
        assert_type(replica.follow(), AsyncService)


# -- inbox ----------------------------------------------------------------------------------------------------


def receiving(inbox: Inbox, session: Session, event: Event) -> None:
    assert_type(event.sender, str)
    assert_type(inbox.accept(session, event, sender="shop"), bool)
    assert_type(inbox.accept_all(None, [event]), list[bool])
    assert_type(inbox.process(received, session=Session, batch=10, share=Share(0, 4)), Service)
    assert_type(inbox.process(lambda event: print(event.id)).once(), Counts)
    assert_type(inbox.configure(order=Order(missing="1h"), retention=Retention(done="7d"), reason="why"), InboxInfo)
    assert_type(inbox.configure(priority=Priority([Tier("now", 1, 9, "1s")]), retry=Retry(attempts=3)), InboxInfo)
    assert_type(inbox.adopt("orders_in", Columns(id="nr")), Adoption)
    assert_type(inbox.drop(if_exists=True), Dropped | None)
    assert_type(inbox.purge(done="7d", dead=None, dry_run=True), int)
    assert_type(inbox.status(), InboxStatus)
    assert_type(inbox.health(Limits(waiting=(10, 100))), Health)
    assert_type(inbox.stats(), list[TypeStats])
    assert_type(inbox.audit(), list[AuditEntry])
    assert_type(inbox.dead.list(Where(sender="shop")), list[DeadLetter])
    assert_type(inbox.events.replay(ALL, reason="the invoices are lost"), int)
    assert_type(inbox.keys.release("k", to=7), bool)
    assert_type(Inbox.list("sqlite:///shop.db"), list[InboxInfo])


async def receiving_too(inbox: AsyncInbox, session: AsyncSession, event: Event) -> None:
    assert_type(await inbox.accept(session, event, sender="shop"), bool)
    assert_type(inbox.process(received, session=Session), AsyncService)
    assert_type(await inbox.info(), InboxInfo)
    assert_type(await inbox.events.get("id", sender="shop"), StoredEvent | None)
    assert_type(await inbox.dead.discard("id"), int)
    assert_type(await inbox.keys.list(), list[BlockedKey])


def tiered(inbox: TieredInbox, other: AsyncTieredInbox) -> None:
    assert_type(inbox.process(received, session=Session), Service)
    assert_type(other.process(received, session=Session), AsyncService)


# -- errors -------------------------------------------------------------------------------------------


def failing(outbox: Outbox, session: Session, event: Event) -> None:
    try:
        outbox.write(session, event)
    except (ConfigError, InvalidEvent, NoTransaction) as error:
        raise Reject(str(error)) from error
    except NotFound as error:
        assert_type(error.kind, str)
    except LeaseLost as error:
        assert_type(error.lost, int)
    except CommitUnknown as error:
        outbox.resolve(error.event_ids)
    except StoreError as error:
        if error.retryable:
            raise RetryLater(timedelta(seconds=5)) from error
        raise BatchFailed({event: error}) from error
    except RelayboxError:
        raise


def vaults() -> None:
    kms = Kms(lambda secret, context: secret, lambda wrapped, context: wrapped)
    with Vault("sqlite:///shop.db", Keyring({"kms": kms}), subject=lambda event: event.key) as vault:
        Outbox("sqlite:///shop.db", codec=vault)
        Inbox("sqlite:///shop.db", codec=vault)
        assert_type(vault.rotate(reason="yearly"), int)
        assert_type(erase(vault, "meier", dry_run=True), Erasure)

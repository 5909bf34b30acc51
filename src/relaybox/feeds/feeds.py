"""`outbox.feeds`: results of queries kept as tables, as twins over the same ops.

outbox.feeds.create(Feed("totals", "SELECT …", key="customer", sources={"orders": "customer"}))
outbox.feeds.refresh(None, "totals")                      in a transaction of its own, or
outbox.feeds.refresh(session, "totals")                   in yours

Each refresh that changed something writes one delta to the feed's topic, in the same transaction.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Unpack

from ..audit import Audit, Change
from ..drivers.script import Async, Script, Sync, commit, look, slow, twin
from ..drivers.spi import AsyncConnection, AsyncHandle, Connection, Handle
from ..errors import ConfigError, FeedError, NotFound, StoreError
from ..event import Event
from ..facts import FeedFailed, FeedRefreshed
from ..feed import Feed
from ..op import Op, arun, run
from ..outbox.write import Writer
from ..store.feeds import Drift, FeedRow, Refreshed, open_feed_store
from ..store.topics.life import STANDING
from ..topic import Topic
from ..topics.context import TopicContext, WithTopicContext
from ..topics.deltas import DeltaRow, achunk_rows, adelta_rows, chunk_rows, delta_rows
from ..topics.hand_off import hand_off
from ..twins import told_by
from .info import FeedInfo, FeedStatus

log = logging.getLogger("relaybox")


class _Feeds(WithTopicContext):
    """What both twins do, as scripts."""

    def __init__(self, context: TopicContext[Any], writer: Callable[[], Writer]) -> None:
        super().__init__(context)
        self._writer = writer
        self._feeds = open_feed_store(context.store.dialect, context.store.tables)

    @slow
    def create(self, feed: Feed, **audit: Unpack[Audit]) -> Script[FeedInfo]:
        """Makes the feed with its table, triggers and topic, or defines it anew. Safe to repeat: the same definition
        changes nothing, another one keeps the rows and is evaluated at the next refresh. FeedError: it cannot be kept
        like this."""
        if not isinstance(feed, Feed):
            raise ConfigError(f"expected a Feed, such as Feed('totals', 'SELECT …'), got {type(feed).__name__}")
        yield from self._audited("create", feed.name, self._create(feed), audit)
        return FeedInfo._of((yield from look(self._feeds.feed(feed.name))))

    def _create(self, feed: Feed) -> Op[bool]:
        name = feed.topic or feed.name
        topic = yield from self._store.topic(name)
        if topic is None:
            yield from self._store.configure(Topic.pub_sub(name), self._now)
        options = feed.options | {"own_topic": topic is None}
        return (yield from self._feeds.create(feed.name, feed.query, builtins.list(feed.key), name, options))

    def _audited(self, verb: str, name: str, op: Op[bool], audit: Audit) -> Script[bool]:
        return self._context.auditor.audited(verb, f"feed {name}", op, audit)

    @twin
    def get(self, name: str) -> Script[FeedInfo | None]:
        """None: there is none."""
        found = yield from look(self._feeds.feeds(name))
        return FeedInfo._of(found[0]) if found else None

    @twin
    def list(self) -> Script[builtins.list[FeedInfo]]:
        """All feeds, by name."""
        return [FeedInfo._of(row) for row in (yield from look(self._feeds.feeds()))]

    @twin
    def status(self, name: str) -> Script[FeedStatus]:
        """What waits for the next refresh, and what is kept for readers."""
        row = yield from look(self._feeds.feed(name))
        counts, limits = (yield from look(self._feeds.counts(name))), self._context.settings.feeds
        found = yield from look(self._feeds.look(limits.late, self._now, name))
        if not found:
            raise NotFound("feed", name, f"feed {name!r} was dropped meanwhile")
        pending = yield from look(self._pending(row))
        return FeedStatus._of(row, counts, pending, found[0], limits.critical_mb)

    def _pending(self, feed: FeedRow) -> Op[int]:
        kept = yield from self._feeds.kept_deltas(name=feed.name)
        topic = yield from self._context.known(feed.topic)
        unread = yield from self._store.unread(topic, [delta.seq for delta in kept])
        awaited = {one.seq for one in unread if STANDING[one.state].kept}
        return sum(delta.held or delta.seq in awaited for delta in kept)

    @slow
    def verify(self, name: str) -> Script[Drift]:
        """Evaluates the query and counts the rows of the table that differ. Nothing is changed."""
        return look(self._feeds.differences(name))

    @slow
    def pause(self, name: str, **audit: Unpack[Audit]) -> Script[bool]:
        """Drops the triggers: writers pay nothing, and the table stays as it is. False: it is paused."""
        return self._audited("pause", name, self._feeds.pause(name), audit)

    @slow
    def resume(self, name: str, **audit: Unpack[Audit]) -> Script[bool]:
        """Makes the triggers again; the next refresh is full. False: it is not paused."""
        return self._audited("resume", name, self._feeds.resume(name), audit)

    @slow
    def drop(self, name: str, **audit: Unpack[Audit]) -> Script[bool]:
        """Deletes the feed with its table, and with its topic if that was made for it. InUse: a group reads that topic.
        False: there is none."""
        if not (yield from look(self._feeds.feeds(name))):
            return False
        return (yield from self._audited("drop", name, self._drop(name), audit))

    @slow
    def hand_off(self, name: str, *, group: str, on: bool = True, **audit: Unpack[Audit]) -> Script[bool]:
        """From now on the group's consumers may commit a claim check before its rows are read: they are kept until
        `rows_consumed`, or the topic's `max_retention`. `on=False`: no more. False: it is so already."""
        feed = yield from look(self._feeds.feed(name))
        topic, reader = yield from look(self._context.reader(feed.topic, group))
        op = hand_off(self._store, self._feeds, name, topic, reader) if on else self._feeds.take_back(name, reader.id)
        verb = "hand off" if on else "take back"
        return (yield from self._context.auditor.audited(verb, f"feed {name} of group {group}", op, audit))

    @twin
    def rows_consumed(self, name: str, n: int, *, group: str, epoch: str | None = None) -> Script[bool]:
        """The rows of delta n were read for a group that hands them over: they need not wait for it any more. False:
        they did not, also after a repetition. `epoch`, of the event: no delta of a feed that was made anew is meant."""
        return commit(self._feeds.rows_consumed(name, n, group, epoch))

    def _drop(self, name: str) -> Op[bool]:
        topic = yield from self._feeds.own_topic(name)
        yield from self._feeds.drop(name)
        if topic is not None:
            yield from self._store.drop(topic)
        return True

    def _refresh(self, name: str, full: bool) -> Op[Refreshed]:
        clock = self._context.clock
        begun = clock.monotonic()
        done = yield from self._feeds.refresh(name, "full" if full else None)
        took = clock.monotonic() - begun
        self._context.observers(FeedRefreshed(name, done.how, done.inserted, done.deleted, took))
        return done

    def _change(self, name: str, audit: Audit) -> Change:
        return self._context.auditor.begin("snapshot", f"feed {name}", audit)

    @slow
    def _alone(self, name: str, op: Op[Refreshed], change: Change | None = None) -> Script[Refreshed]:
        """In a transaction of its own. A failure is written down in another: somebody's schedule may have called."""
        try:
            done = yield from (commit(op) if change is None else change.commit(op))
        except StoreError as error:
            if not isinstance(error, FeedError) or error.reason != "paused":
                yield from self._failed(name, error)
            raise
        if done.number is not None:
            self._context.wake()
        if change is not None:
            change.tell()
        return done

    def _failed(self, name: str, error: StoreError) -> Script[None]:
        """Errors of feeds name objects; of others the type is kept, because their text may quote rows."""
        told = str(error) if isinstance(error, FeedError) else f"{type(error).__name__}; who called was told the rest"
        try:
            failures = yield from commit(self._feeds.failed(name, told, None, self._now))
        except StoreError as second:
            log.warning("feed %s failed, which could not be written down: %s", name, type(second).__name__)
        else:
            self._context.observers(FeedFailed(name, failures or 1, told))

    def _told(
        self, done: Refreshed, connection: Connection | AsyncConnection, change: Change | None = None
    ) -> Refreshed:
        if done.number is not None:
            self._writer().wake_after(connection)
        if change is not None and not connection.after_commit(change.tell):
            change.tell()
        return done


class Feeds(_Feeds, Sync):
    """Results of queries kept as tables, and their changes as events. PostgreSQL only."""

    def refresh(self, handle: Handle | None, name: str, *, full: bool = False) -> Refreshed:
        """Brings the table up to date and writes one delta of what that changed: in the handle's transaction, or with
        None in one of its own. The transaction must be READ COMMITTED, and holds the feed until it ends.

        full  evaluate the whole query
        """
        op = self._refresh(name, full)
        if handle is None:
            return self._alone(name, op)
        connection = self._connection(handle)
        return self._told(run(op, connection), connection)

    def snapshot(self, handle: Handle | None, name: str, **audit: Unpack[Audit]) -> Refreshed:
        """Brings the table up to date and then writes all its rows as one more event of the feed, for readers that are
        new or have a gap: in the handle's transaction, or with None in one of its own, as `refresh` does. Who has the
        event before it may pass it by."""
        op, change = self._feeds.snapshot(name), self._change(name, audit)
        if handle is None:
            return self._alone(name, op, change)
        connection = self._connection(handle)
        return self._told(run(change.written(op), connection), connection, change)

    def _connection(self, handle: Handle) -> Connection:
        connection = self._writer().connection(handle)
        if connection.is_async:
            raise ConfigError(f"{type(handle).__qualname__} is an async handle; use AsyncOutbox")
        return connection

    def rows(self, event: Event[Any]) -> Iterator[DeltaRow]:
        """The rows of a delta: deleted ones, then inserted ones. Of one by claim check a chunk is read at a time.
        NotFound: they are not kept any more."""
        return delta_rows(event, self._feeds, self._db)

    def rows_of(self, name: str, n: int, *, epoch: str | None = None) -> Iterator[DeltaRow]:
        """The same of a delta by claim check, for who was told its number and has no event. `epoch`, of the event: no
        delta of a feed that was made anew. NotFound: there are no rows of it besides its event, or not any more."""
        return chunk_rows(name, n, epoch, self._feeds, self._db)


@told_by(Feeds)
class AsyncFeeds(_Feeds, Async):
    """Results of queries kept as tables, and their changes as events. PostgreSQL only."""

    async def refresh(self, handle: AsyncHandle | None, name: str, *, full: bool = False) -> Refreshed:
        op = self._refresh(name, full)
        if handle is None:
            return await self._alone(name, op)
        connection = self._connection(handle)
        return self._told(await arun(op, connection), connection)

    async def snapshot(self, handle: AsyncHandle | None, name: str, **audit: Unpack[Audit]) -> Refreshed:
        op, change = self._feeds.snapshot(name), self._change(name, audit)
        if handle is None:
            return await self._alone(name, op, change)
        connection = self._connection(handle)
        return self._told(await arun(change.written(op), connection), connection, change)

    def _connection(self, handle: AsyncHandle) -> AsyncConnection:
        connection = self._writer().connection(handle)
        if not connection.is_async:
            raise ConfigError(
                f"{type(handle).__qualname__} is a synchronous handle, which would block the event loop; use Outbox"
            )
        return connection

    def rows(self, event: Event[Any]) -> AsyncIterator[DeltaRow]:
        return adelta_rows(event, self._feeds, self._db)

    def rows_of(self, name: str, n: int, *, epoch: str | None = None) -> AsyncIterator[DeltaRow]:
        return achunk_rows(name, n, epoch, self._feeds, self._db)

"""Hand-off: a group's consumer commits the event of a claim check at once, and other jobs read its rows.

    outbox.feeds.hand_off("totals", group="loader")             once: from now on rows wait for the word of its jobs
    outbox.feeds.rows_consumed("totals", 7, group="loader")     by a job that has read them, as often as it likes

Which rows wait for a group follows from where it stands: not those of deltas that it is never given. So that is looked
at when it begins to hand over, and when it is moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..op import Op
from ..store.feeds import KeptDelta
from ..store.feeds.store import FeedStore
from ..store.topics import GroupRow, Start, TopicRow
from ..store.topics.store import TopicStore


def hand_off(store: TopicStore, feeds: FeedStore, name: str, topic: TopicRow, group: GroupRow) -> Op[bool]:
    """What the group has left behind before is nobody's to read. False: it is so already. Needs a transaction."""
    yield from store.hold_place(group)
    if not (yield from feeds.hand_off(name, group.id)):
        return False
    kept = yield from feeds.kept_deltas(name=name)
    unread = yield from _unread(store, topic, group, kept)
    yield from feeds.pass_over(group.id, [delta for delta in kept if delta.seq not in unread])
    return True


def move(
    store: TopicStore, feeds: FeedStore, topic: TopicRow, group: GroupRow, to: Start, now: datetime | None
) -> Op[None]:
    """A seek. What it passes over waits for nobody, and what comes again waits again; jobs that read meanwhile go on.
    Needs a transaction."""
    yield from store.hold_place(group)
    kept = (yield from feeds.kept_deltas(group=group.id)) if (yield from feeds.there()) else []
    before = yield from _unread(store, topic, group, kept)
    yield from store.seek(topic, group, to, now)
    if kept:
        after = yield from _unread(store, topic, group, kept)
        yield from feeds.pass_over(group.id, [delta for delta in kept if delta.seq in before - after])
        yield from feeds.look_forward(group.id, [delta for delta in kept if delta.seq in after])


def _unread(store: TopicStore, topic: TopicRow, group: GroupRow, kept: Sequence[KeptDelta]) -> Op[set[int]]:
    found = yield from store.unread(topic, [delta.seq for delta in kept])
    return {one.seq for one in found if one.group == group.id}

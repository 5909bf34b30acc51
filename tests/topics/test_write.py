"""Writing to topics through every handle: the event lives and dies with the caller's transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import Box, Probe, make_box, rows
from kit.handles import HANDLES, Handle, opened
from relaybox import Event, NoTransaction, Outbox
from relaybox.errors import UnsupportedByEngine
from relaybox.topic import Topic

from .writing import in_outbox, in_topic, migrated

TOPICS = (
    Topic.pub_sub("orders"),
    Topic.pub_sub("marked", tracking="bitmap"),
    Topic.pub_sub("acked", tracking="acks"),
    Topic.queue("jobs"),
)


@pytest.fixture(params=[kind for kind in HANDLES if kind.engine == "postgres"], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Handle]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def url() -> str:
    return migrated(*TOPICS)


@pytest.fixture
def box(kind: type[Handle], url: str) -> Box:
    return make_box("plain", url, Probe(), is_async=kind.is_async)


def event(topic: str | None, n: int = 0) -> Event:
    return Event("Happened", {"n": n}, key=f"k{n}", topic=topic)


@pytest.mark.parametrize("topic", [topic.name for topic in TOPICS])
async def test_commit_keeps_and_rollback_does_not(kind: type[Handle], url: str, box: Box, topic: str) -> None:
    async with opened(kind, url) as handle:
        await handle.begin()
        kept = await box.write(handle.raw, event(topic))
        await handle.commit()
        await handle.begin()
        lost = await box.write(handle.raw, event(topic))
        await handle.rollback()
    await box.close()
    found = in_topic(url, topic)
    assert kept in found
    assert lost not in found


async def test_a_savepoint_rolled_back_takes_its_event_along(kind: type[Handle], url: str, box: Box) -> None:
    async with opened(kind, url) as handle:
        await handle.begin()
        kept = await box.write(handle.raw, event("orders", 1))
        await handle.savepoint()
        lost = await box.write(handle.raw, event("orders", 2))
        await handle.rollback_to()
        after = await box.write(handle.raw, event("orders", 3))
        await handle.commit()
    await box.close()
    found = in_topic(url, "orders")
    assert found.index(kept) < found.index(after)
    assert lost not in found
    xids = rows(url, f"SELECT DISTINCT xid::text FROM outbox_event_log_1 WHERE event_id IN ('{kept}', '{after}')")
    assert len(xids) == 1, "the number is the transaction's, not the savepoint's"


async def test_a_mixed_batch_keeps_its_order(kind: type[Handle], url: str, box: Box) -> None:
    topics = ["orders", None, "jobs", "orders", None, "marked", "jobs", None, "acked", "orders"]
    events = [event(topic, n) for n, topic in enumerate(topics)]
    async with opened(kind, url) as handle:
        await handle.begin()
        assert await box.write_all(handle.raw, events) == [e.id for e in events]
        await handle.commit()
    await box.close()
    ours = {e.id for e in events}
    for topic in ("orders", "jobs", "marked", "acked"):
        wanted = [e.id for e in events if e.topic == topic]
        assert [event_id for event_id in in_topic(url, topic) if event_id in ours] == wanted
    wanted = [e.id for e in events if e.topic is None]
    assert [event_id for event_id in in_outbox(url) if event_id in ours] == wanted


@pytest.mark.parametrize("topic", [topic.name for topic in TOPICS])
@pytest.mark.parametrize("count", [2, 450])  # arrays, and COPY where the handle has it
async def test_a_batch_is_stored_in_list_order(kind: type[Handle], url: str, box: Box, topic: str, count: int) -> None:
    events = [event(topic, n) for n in range(count)]
    async with opened(kind, url) as handle:
        await handle.begin()
        ids = await box.write_all(handle.raw, events)
        await handle.commit()
    await box.close()
    assert in_topic(url, topic)[-count:] == ids


async def test_without_a_transaction_nothing_is_written(kind: type[Handle], url: str, box: Box) -> None:
    handle = kind(url)
    await handle.open(autocommit=True)
    lost = event("orders")
    with pytest.raises(NoTransaction):
        await box.write(handle.raw, lost)
    await handle.close()
    await box.close()
    assert lost.id not in in_topic(url, "orders")


@pytest.mark.parametrize("kind", [kind for kind in HANDLES if kind.engine == "sqlite"], ids=lambda k: k.__name__)
async def test_elsewhere_a_topic_travels_with_the_event_into_the_outbox(kind: type[Handle], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with Outbox(url) as outbox:
        outbox.migrate()
        with pytest.raises(UnsupportedByEngine, match="PostgreSQL"):
            _ = outbox.topics
    box = make_box("plain", url, Probe(), is_async=kind.is_async)
    async with opened(kind, url) as handle:
        await handle.begin()
        written = [event(None), event("orders")]
        await box.write_all(handle.raw, written)
        await handle.commit()
    await box.close()
    assert in_outbox(url) == [each.id for each in written]
    with Outbox(url) as outbox:
        assert [Event.stored(row).topic for row in outbox._db.run(outbox.store.waiting(10, None))] == [None, "orders"]

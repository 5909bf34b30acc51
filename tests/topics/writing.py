"""What the tests of the write side stand on: a database with an outbox and topics, and a look past relaybox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from kit import make_postgres, one, rows
from relaybox import Outbox
from relaybox.store.topics import GroupRow, Start, TopicRow
from relaybox.testing.servers import require
from relaybox.topic import Topic


def fresh_url() -> str:
    return require("postgres-wheel", durable=False).create_database()


def migrated(*topics: Topic) -> str:
    url = make_postgres()
    with Outbox(url) as box:
        for topic in topics:
            box.topics.configure(topic)
    return url


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection


def subscribe(box: Outbox, topic: str, name: str) -> GroupRow:
    store = box.topic_store
    assert store is not None
    group, _ = box._db.run(store.subscribe(known(box, topic), name, Start(), None, None))
    return group


def join(box: Outbox, group: GroupRow) -> int:
    assert box.topic_store is not None
    return box._db.run(box.topic_store.join(group, "member", timedelta(hours=1), None))


def leave_for_good(box: Outbox, group: GroupRow) -> None:
    assert box.topic_store is not None
    box._db.run(box.topic_store.set_state(group, "cancelled", "test", None))


def known(box: Outbox, topic: str) -> TopicRow:
    row = box.topics.get(topic)
    assert row is not None
    return row


def relation(url: str, topic: str) -> str:
    return str(one(url, f"SELECT relation FROM outbox_event_topic WHERE name = '{topic}'"))


def in_topic(url: str, topic: str) -> list[str]:
    """The ids in a topic's own table, in order."""
    return [row[0] for row in rows(url, f"SELECT event_id FROM {relation(url, topic)} ORDER BY seq")]


def in_outbox(url: str) -> list[str]:
    return [row[0] for row in rows(url, "SELECT event_id FROM outbox_event ORDER BY seq")]

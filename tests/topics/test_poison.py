"""Impossible rows in the tables of a topic: refused, or harmless. Every group is given the honest events behind and
between them, and the commands of operators work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from kit import PATIENCE, make_postgres, one, rows, wait_until
from outbox import poison as outbox_poison
from relaybox import Event, Outbox, StartFrom, Where
from relaybox.topic import Topic
from relaybox.topics.group import Group

from .poison import KINDS, statement, unguarded
from .test_group import QUICK

TRACKINGS = ("offset", "bitmap", "acks")
GROUPS = {"plain": False, "ordered": True, "pull": False, "line": True}  # whether they keep order


def made(tracking: str, url: str, settings: Any = None) -> tuple[Outbox, int]:
    box = Outbox(url, settings=settings)
    box.topics.configure(Topic.pub_sub("orders", tracking=tracking, shards=4))
    for name in GROUPS:
        group(box, name).create()
    topic_id = rows(url, "SELECT id FROM outbox_event_topic")[0][0]
    return box, topic_id


def group(box: Outbox, name: str) -> Group:
    return box.topics.group("orders", name, start=StartFrom.earliest(), on_exhausted="skip", ordered=GROUPS[name])


def put(tracking: str, box: Outbox, url: str, topic_id: int, kinds: Sequence[str]) -> list[int]:
    """Between honest events, whose contents these are."""
    honest: list[int] = []
    for n, kind in enumerate(kinds):
        poison = Event("Poison", {}, key=f"p{n}", topic="orders")
        before, behind, alone = (
            Event("Honest", 3 * n + i, key=key, topic="orders") for i, key in enumerate((f"k{n}", f"k{n}", None))
        )
        with box.transaction() as tx:
            first, seq = box.write_all(tx, [before, poison])
        rows(url, statement(tracking, kind, topic_id, seq, first, url))
        with box.transaction() as tx:
            box.write_all(tx, [behind, alone])
        honest += [3 * n, 3 * n + 1, 3 * n + 2]
    return honest


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_there_are_fifty_kinds(tracking: str) -> None:
    assert len(KINDS[tracking]) >= 50


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_what_can_be_said_of_a_row_alone_is_refused(tracking: str) -> None:
    url = make_postgres()
    box, topic_id = made(tracking, url)
    with box:
        for kind in KINDS[tracking]:
            if kind.startswith("!"):
                with pytest.raises(Exception, match=r"_limits"):
                    put(tracking, box, url, topic_id, [kind])


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_impossible_rows_that_are_there_all_the_same_harm_nobody(tracking: str) -> None:
    url = make_postgres()
    box, topic_id = made(tracking, url, QUICK)
    seen: dict[str, Counter[int]] = {name: Counter() for name in GROUPS}
    unguarded(url, topic_id)
    with box:
        honest = put(tracking, box, url, topic_id, list(KINDS[tracking]))
        for name in ("plain", "ordered"):
            group(box, name).deliver(noting(seen[name])).start()
        stop = threading.Event()
        pulling = [threading.Thread(target=pull, args=(group(box, n), seen[n], stop)) for n in ("pull", "line")]
        for thread in pulling:
            thread.start()
        try:
            wait_until(
                lambda: all(not set(honest) - set(found) for found in seen.values()),
                "honest events",
                patience=3 * PATIENCE,
            )
        finally:
            stop.set()
            for thread in pulling:
                thread.join()
        operated(box)
    assert [(name, n) for name, found in seen.items() for n in honest if found[n] != 1] == []


def noting(seen: Counter[int]) -> Callable[[Event], None]:
    def note(event: Event) -> None:
        if event.type == "Honest":
            seen[event.payload] += 1
        else:
            assert event.payload == {}
            assert event.headers == {}
            assert event.created_at >= event.occurred_at

    return note


def pull(group: Group, seen: Counter[int], stop: threading.Event) -> None:
    note = noting(seen)
    with group.consumer() as consumer:
        while not stop.is_set():
            batch = consumer.poll(100, wait=0.1)
            failed: dict[Event, BaseException] = {}
            for event in batch:
                try:
                    note(event)
                except Exception as error:
                    failed[event] = error
            consumer.commit(batch, failed=failed)


def operated(box: Outbox) -> None:
    """What operators do, with all there is."""
    repr((box.topics.list(), box.topics.groups(), box.topics.get("orders"), box.topics.advise("orders")))
    for name in GROUPS:
        of = group(box, name)
        repr((of.info(), of.lag(), of.health(), of.keys.list()))
        letters, events = of.dead.list(limit=1000), of.events.list(limit=1000)
        repr((letters, events))
        assert letters
        of.events.count(Where(type="Poison"))
        of.dead.replay(Where(), reason="again")
        of.dead.discard(Where(ids=[letter.event.id for letter in letters[:1]]), reason="no more")
    if box.topics.list()[0].topic.tracking != "offset":
        box.topics.force_complete("orders", timedelta(days=1))


@pytest.mark.parametrize("way", ["push", "pull"])
def test_impossible_rows_of_a_queue_harm_nobody(way: str) -> None:
    """A queue tracked by rows is an outbox of its own, with another name."""
    url, seen, stop, honest = make_postgres(), Counter[int](), threading.Event(), list[int]()
    with Outbox(url, settings=QUICK) as box:
        box.topics.configure(Topic(name="jobs", tracking="rows"))
        topic_id = one(url, "SELECT id FROM outbox_event_topic")
        queue = f"outbox_event_queue_{topic_id}"
        for text in outbox_poison.UNGUARDED:
            rows(url, text.replace("outbox_event", queue))
        for n, kind in enumerate(outbox_poison.KINDS["postgres"]):
            poison = Event("Poison", {}, key=f"p{n}", topic="jobs")
            before, behind = (Event("Honest", 2 * n + i, topic="jobs") for i in range(2))
            with box.transaction() as tx:
                box.write_all(tx, [before, poison])
            seq = one(url, f"SELECT seq FROM {queue} WHERE event_id = '{poison.id}'")
            texts = outbox_poison.statements("postgres", kind, seq)
            rows(url, ";".join(text.replace("outbox_event", queue) for text in texts))
            with box.transaction() as tx:
                box.write(tx, behind)
            honest += [2 * n, 2 * n + 1]
        of = box.topics.queue("jobs")
        if way == "push":
            of.deliver(noting(seen)).start()
        else:
            threading.Thread(target=pull, args=(of, seen, stop)).start()
        try:
            wait_until(lambda: not set(honest) - set(seen), "honest events", patience=3 * PATIENCE)
        finally:
            stop.set()
        repr((box.topics.list(), of.info(), of.lag(), of.health(), of.keys.list(), of.events.list(limit=1000)))
        assert of.dead.list(limit=1000)
        of.dead.replay(Where(), reason="again")
    assert [n for n in honest if seen[n] != 1] == []

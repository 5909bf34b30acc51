"""A queue tracked by rows that is claimed fairly: no tenant's job waits for what others have waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from kit import until
from relaybox import AsyncOutbox, Event, Outbox, Topic
from relaybox.errors import ConfigError, SchemaMissing

from .kit import fresh_url
from .test_group import QUICK

FAIR = QUICK.replaced({"delivery.fair": "tenant"})


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
def box(url: str) -> Iterator[Outbox]:
    with closing(Outbox(url, settings=QUICK)) as made:
        made.migrate()
        made.topics.configure(Topic.queue("jobs"))
        yield made


def write(box: Outbox, *tenants: str) -> None:
    with box.transaction() as tx:
        for start in range(0, len(tenants), 100):
            box.write_all(tx, [Event("Job", name, tenant=name, topic="jobs") for name in tenants[start : start + 100]])


BACKLOG = ["big"] * 3_000 + ["a", "b"] * 5


async def test_handlers(box: Outbox, url: str) -> None:
    box.migrate(fair="tenant")
    write(box, *BACKLOG)
    seen: list[str] = []

    async def handle(event: Event) -> None:
        seen.append(event.payload)

    async with AsyncOutbox(url, settings=QUICK) as other, other.topics.queue("jobs", fair="tenant").deliver(handle):
        await until(lambda: seen.count("a") == seen.count("b") == 5, "both are served")
        assert seen.count("big") < 2_500


@pytest.mark.parametrize("way", ["argument", "setting"])
def test_consumers(box: Outbox, url: str, way: str) -> None:
    box.migrate(fair="tenant")
    write(box, *BACKLOG)
    with closing(Outbox(url, settings=FAIR if way == "setting" else QUICK)) as other:
        queue = other.topics.queue("jobs", fair="tenant" if way == "argument" else None)
        with queue.consumer() as consumer:
            seen = Counter(event.payload for event in consumer.poll(100))
            assert seen == {"a": 5, "b": 5, "big": 90}


def test_its_index_is_made_on_request(box: Outbox, url: str) -> None:
    """And with a queue that is made where the settings ask for fair claims."""
    queue = box.topics.queue("jobs", fair="tenant")
    with pytest.raises(SchemaMissing, match="migrate --fair tenant"), queue.consumer() as consumer:
        consumer.poll(1)
    with pytest.raises(SchemaMissing, match="migrate --fair tenant"):
        queue.deliver(print).start()
    assert not box.topics.groups("jobs"), "a refused group was made all the same"
    assert len(box.migrate(fair="tenant")) == 4
    with closing(Outbox(url, settings=FAIR)) as other:
        other.topics.configure(Topic.queue("mails"))
        with other.topics.queue("mails").consumer() as consumer:
            assert not consumer.poll(1)


def test_logs_and_order_have_no_use_for_it(box: Outbox, url: str) -> None:
    box.topics.configure(Topic.pub_sub("orders"))
    with pytest.raises(ConfigError, match="'orders' is a log"):
        box.topics.group("orders", "g", fair="tenant").create()
    with pytest.raises(ConfigError, match=r"fair='tenant' .* or ordered"):
        box.topics.queue("jobs", ordered=True, fair="tenant").create()
    with pytest.raises(ConfigError, match="expected fair to be off or tenant"):
        box.topics.queue("jobs", fair="always")  # type: ignore[arg-type]
    with closing(Outbox(url, settings=FAIR)) as other:
        other.topics.group("orders", "g").create()

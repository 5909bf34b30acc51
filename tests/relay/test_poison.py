"""A poison event at the head of a key: its policy decides for its key, and nobody else notices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from relay_kit import settings, write
from scripted_sink import ScriptedSink

from kit import migrated
from relaybox import AsyncRelay, Event, Outbox
from relaybox.facts import Delivered, Died, Retried
from relaybox.spi import Answer, Message
from relaybox.testing import Probe
from relaybox.testing.servers import require

FOLLOWERS = 300
OTHERS = 200


@pytest.fixture
def pg() -> Iterator[str]:
    server = require("postgres-wheel", durable=False)
    url = server.create_database()
    with migrated(url):
        pass
    yield url
    server.drop_database(url)


class Poisoned(ScriptedSink):
    """Refuses number 0 of the key "bad" until it is cured."""

    def __init__(self) -> None:
        super().__init__(self._judge)
        self.cured = False

    def _judge(self, message: Message) -> Answer:
        poison = message.key == "bad" and message.event.payload == 0
        return OSError("indigestible") if poison and not self.cured else None


def fill(url: str) -> None:
    events = [Event("T", n, key="bad") for n in range(FOLLOWERS + 1)]
    write(url, events + [Event("T", n, key=f"good-{n % 20}") for n in range(OTHERS)])


@pytest.mark.parametrize("strategy", ["shards", "advisory", "rows"])
async def test_block_retries_for_ever_and_the_key_waits(pg: str, probe: Probe, strategy: str) -> None:
    fill(pg)
    sink = Poisoned()
    chosen = settings({"order.strategy": strategy, "relay.retry.attempts": 2, "order.on_exhausted": "block"})
    async with AsyncRelay(pg, sink, to="x", observers=[probe], settings=chosen):
        await probe.wait(Delivered, OTHERS, timeout=20)
        await probe.wait(Retried, 4)
        assert probe.of(Died) == []
        assert "bad" not in sink.by_key()
        with Outbox(pg) as box:
            (blocked,) = box.keys.list()
        assert (blocked.key, blocked.cause) == ("bad", "retry")
        sink.cured = True
        await probe.wait(Delivered, OTHERS + FOLLOWERS + 1, timeout=20)
    assert sink.by_key()["bad"] == list(range(FOLLOWERS + 1))


@pytest.mark.parametrize("strategy", ["shards", "advisory", "rows"])
async def test_park_holds_the_key_until_somebody_decides(pg: str, probe: Probe, strategy: str) -> None:
    fill(pg)
    sink = Poisoned()
    chosen = settings({"order.strategy": strategy, "relay.retry.attempts": 2, "order.on_exhausted": "park"})
    async with AsyncRelay(pg, sink, to="x", observers=[probe], settings=chosen):
        await probe.wait(Died)
        await probe.wait(Delivered, OTHERS, timeout=20)
        assert "bad" not in sink.by_key()
        sink.cured = True
        with Outbox(pg) as box:
            (blocked,) = box.keys.list()
            assert (blocked.key, blocked.cause) == ("bad", "dead")
            (letter,) = box.dead.list()
            assert box.dead.replay(letter.event.id)
        await probe.wait(Delivered, OTHERS + FOLLOWERS + 1, timeout=20)
    assert sink.by_key()["bad"] == list(range(FOLLOWERS + 1)), "the replayed head goes first"


@pytest.mark.parametrize("strategy", ["shards", "advisory", "rows"])
async def test_unblocking_lets_the_key_go_on_without_its_head(pg: str, probe: Probe, strategy: str) -> None:
    fill(pg)
    sink = Poisoned()
    chosen = settings({"order.strategy": strategy, "relay.retry.attempts": 1, "order.on_exhausted": "park"})
    async with AsyncRelay(pg, sink, to="x", observers=[probe], settings=chosen):
        await probe.wait(Died)
        with Outbox(pg) as box:
            assert box.keys.release("bad")
            await probe.wait(Delivered, OTHERS + FOLLOWERS, timeout=20)
            assert box.dead.count() == 1
    assert sink.by_key()["bad"] == list(range(1, FOLLOWERS + 1))


@pytest.mark.parametrize("strategy", ["shards", "advisory", "rows"])
async def test_skip_buries_the_head_and_goes_on(pg: str, probe: Probe, strategy: str) -> None:
    fill(pg)
    sink = Poisoned()
    chosen = settings({"order.strategy": strategy, "relay.retry.attempts": 2, "order.on_exhausted": "skip"})
    async with AsyncRelay(pg, sink, to="x", observers=[probe], settings=chosen):
        await probe.wait(Delivered, OTHERS + FOLLOWERS, timeout=20)
    assert sink.by_key()["bad"] == list(range(1, FOLLOWERS + 1))
    assert probe.count(Died) == 1

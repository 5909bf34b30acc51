"""A relay that sends the rows of a feed: what goes out, in which order, and what stops it."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rows_kit import QUICK, Sent, as_table, compacted, exact, fill, make, relay, table
from scripted_sink import ScriptedSink
from typer.testing import CliRunner

from kit import make_postgres, one, rows, until
from relaybox import ConfigError, Event, Feed, Outbox, Relay, Settings, StartFrom
from relaybox.cli.app import app
from relaybox.errors import DeliveryError, NotFound, Reject
from relaybox.spi import Answer, Message

BOTH = [pytest.param({}, id="inline"), pytest.param({"inline_rows": 0, "chunk_rows": 7}, id="claim-check")]


@pytest.fixture
def url() -> str:
    return make_postgres()


@pytest.fixture
def box(url: str) -> Iterator[Outbox]:
    with Outbox(url) as box:
        yield box


def sink(verdict: Callable[[Message], Answer] | None = None, *, tombstones: bool = True) -> ScriptedSink:
    return ScriptedSink(verdict, tombstones=tombstones)


def sent(messages: Sequence[Message]) -> list[Sent]:
    return [Sent(str(m.key), None if m.tombstone else m.body, dict(m.attributes)) for m in messages]


async def drained(url: str, sink: ScriptedSink, **options: Any) -> list[Sent]:
    """Until every delta went out."""
    deltas = one(url, f"SELECT n FROM outbox_event_feed WHERE name = '{options.get('name', 'items')}'")
    async with relay(url, sink, **options) as running:
        await until(lambda: running.counts.done == deltas)
    return sent(sink.sent)


@pytest.mark.parametrize("chunks", BOTH)
@pytest.mark.parametrize("mode", ["differential", "full"])
async def test_rows_in_pairs_whatever_the_delta_is(url: str, box: Outbox, mode: str, chunks: dict[str, int]) -> None:
    """The four combinations. Some chunks have updated rows only, one has nothing but new ones."""
    make(box, url, mode=mode, **chunks)
    fill(url, 1, 50)
    refreshed = [box.feeds.refresh(None, "items")]
    before = table(url)
    rows(url, "UPDATE item SET big = big + 1 WHERE price < 31")
    rows(url, "DELETE FROM item WHERE price > 45")
    fill(url, 51, 70)
    refreshed.append(box.feeds.refresh(None, "items"))
    rows(url, "DELETE FROM item WHERE price < 5")
    refreshed.append(box.feeds.refresh(None, "items"))
    assert [done.how for done in refreshed] == ["full", mode, mode]
    assert {done.claim_check for done in refreshed} == {bool(chunks)}

    messages = await drained(url, sink())
    assert [Counter(m.op for m in messages if m.n == n) for n in (1, 2, 3)] == [
        {"c": 50},
        {"c": 20, "u": 30, "d": 6, "tombstone": 6},
        {"d": 4, "tombstone": 4},
    ]
    assert [m.n for m in messages] == sorted(m.n for m in messages)
    assert as_table(messages) == table(url)
    assert as_table(m for m in messages if m.n == 1) == before
    ids = [m.headers["event_id"] for m in messages if m.body is not None]
    assert len(set(ids)) == len(ids)


async def test_a_message(url: str, box: Outbox) -> None:
    make(box, url)
    fill(url, 1, 1)
    box.feeds.refresh(None, "items")
    rows(url, "UPDATE item SET price = 1.100")  # equal, and written otherwise
    box.feeds.refresh(None, "items")
    rows(url, "DELETE FROM item")
    box.feeds.refresh(None, "items")
    to = sink()
    _, updated, deleted, tombstone = await drained(url, to, to="{aggregate_type}-{type}")
    info = box.feeds.get("items")
    assert info is not None
    assert updated.key == '{"shop":1,"code":"c\\"1"}'
    found = exact(updated.body or b"")
    assert list(found) == ["op", "before", "after", "feed", "epoch", "n", "refresh_id"]
    assert (found["op"], found["feed"], found["epoch"], found["n"]) == ("u", "items", info.epoch, 2)
    (before, after) = (table[0] for table in ([found["before"]], [found["after"]]))
    assert (str(before["price"]), str(after["price"]), after["big"]) == ("1.10", "1.100", 9007199254740994)
    assert b'"note":{"a" :  1.50, "\xc3\xa9": [1e400]}' in (updated.body or b"")  # as it was written
    headers = {name: updated.headers[name] for name in ("feed", "feed-epoch", "feed-n", "feed-op", "event_type")}
    assert headers == {
        "feed": "items",
        "feed-epoch": info.epoch,
        "feed-n": "2",
        "feed-op": "u",
        "event_type": "feed.row",
    }
    assert updated.headers["event_id"] == f"{info.epoch}-2-1"
    assert (deleted.op, exact(deleted.body or b"")["after"]) == ("d", None)
    assert (tombstone.op, tombstone.key) == ("tombstone", updated.key)
    assert tombstone.headers["event_id"] == deleted.headers["event_id"]  # so that who reads both by id has it once
    assert {message.destination for message in to.sent} == {"items-feed.row"}


@pytest.mark.parametrize("chunks", BOTH)
async def test_keys_that_are_equal_are_one_key(url: str, box: Outbox, chunks: dict[str, int]) -> None:
    rows(url, "CREATE TABLE n (k numeric PRIMARY KEY, v integer)")
    box.feeds.create(Feed("numbers", "SELECT k, v FROM n", key="k", sources={"n": "k"}, **chunks))
    rows(url, "INSERT INTO n VALUES (1.0, 1), (123456789012345678901234567890.5, 1), (0.00, 1), ('NaN', 1)")
    box.feeds.refresh(None, "numbers")
    rows(url, "UPDATE n SET k = 1.00, v = 2 WHERE k = 1")
    box.feeds.refresh(None, "numbers")
    messages = await drained(url, sink(), name="numbers")
    assert [(m.key, m.op) for m in messages if m.n == 2] == [('{"k":1}', "u")]
    keys = {'{"k":1}', '{"k":123456789012345678901234567890.5}', '{"k":0}', '{"k":"NaN"}'}
    assert set(compacted(messages)) == keys


async def test_a_snapshot(url: str, box: Outbox) -> None:
    make(box, url, inline_rows=10, chunk_rows=4)
    for count in (10, 30):  # inline, and by claim check
        rows(url, "DELETE FROM item")
        fill(url, 1, count)
        done = box.feeds.snapshot(None, "items")
        assert done.claim_check == (count > 10)
    messages = await drained(url, sink())
    read = [m for m in messages if m.op == "r"]
    assert [sum(m.n == n for m in read) for n in sorted({m.n for m in read})] == [10, 30]
    assert [m.headers["feed-rows"] for m in read] == ["10"] * 10 + ["30"] * 30
    assert all("feed-rows" not in m.headers for m in messages if m.op != "r")
    assert as_table(read[10:]) == table(url)


async def test_without_tombstones(url: str, box: Outbox) -> None:
    """By the broker, or by request."""
    make(box, url)
    fill(url, 1, 3)
    box.feeds.refresh(None, "items")
    rows(url, "DELETE FROM item")
    box.feeds.refresh(None, "items")
    messages = await drained(url, sink(), tombstones=False)
    assert [m.op for m in messages] == ["c"] * 3 + ["d"] * 3
    with box:
        group = box.topics.group("items", "other", start=StartFrom.earliest())
        other = sink(tombstones=False)
        Relay(group, other, to="x", feed="items", rows=True, settings=QUICK).once()
        assert [m.op for m in sent(other.sent)] == ["c"] * 3 + ["d"] * 3


async def test_a_tombstone_never_goes_before_its_row(url: str, box: Outbox) -> None:
    make(box, url)
    fill(url, 1, 20)
    box.feeds.refresh(None, "items")
    rows(url, "DELETE FROM item")
    box.feeds.refresh(None, "items")
    refused: list[str] = []

    def verdict(message: Message) -> Answer:
        if message.attributes["feed-op"] == "d" and len(refused) < 3:
            refused.append(message.id)
            return DeliveryError("not now")
        return None

    to = sink(verdict)
    messages = await drained(url, to)
    for key in {m.key for m in messages}:
        ops = [m.op for m in messages if m.key == key]
        assert ops.index("d") < ops.index("tombstone")
        assert ops[-1] == "tombstone"
    assert all(len({m.key for m in call}) == len(call) for call in to.calls)  # a key once in a call


# -- what stops it ---------------------------------------------------------------------------------------


async def test_a_delta_that_failed_goes_again_as_a_whole_and_before_the_next(url: str, box: Outbox) -> None:
    make(box, url, inline_rows=0, chunk_rows=10)
    fill(url, 1, 200)
    box.feeds.refresh(None, "items")
    rows(url, "UPDATE item SET big = 0")
    box.feeds.refresh(None, "items")
    failed: list[str] = []

    def verdict(message: Message) -> Answer:
        if message.id.endswith(("-1-150", "-2-1")) and failed.count(message.id) < 2:
            failed.append(message.id)
            return DeliveryError("not now")
        return None

    messages = await drained(url, sink(verdict))
    assert len(failed) == 4
    assert [m.n for m in messages] == sorted(m.n for m in messages)
    last = [m.headers["event_id"] for m in messages if m.n == 1][-200:]
    assert len(set(last)) == 200  # all of it, from the first to the last
    assert as_table(messages) == table(url)


async def test_what_the_broker_refuses_parks_its_delta_and_all_later_ones_wait(url: str, box: Outbox) -> None:
    make(box, url, inline_rows=0, chunk_rows=10)
    fill(url, 1, 30)
    box.feeds.refresh(None, "items")
    fill(url, 31, 31)
    box.feeds.refresh(None, "items")
    limit = 10

    def verdict(message: Message) -> Answer:
        return Reject("too large") if message.id.endswith("-1-25") and limit < 20 else None

    group = box.topics.group("items", "broker")
    async with relay(url, sink(verdict)) as running:
        await until(lambda: running.counts.dead == 1)
        await running.drain()
        [letter] = group.dead.list()
        assert "row 25: too large" in str(letter.error)
        assert [event.headers["feed-n"] for event in [letter.event]] == ["1"]
        sink_ = running.sink
        assert isinstance(sink_, ScriptedSink)
        assert all(m.n == 1 for m in sent(sink_.sent))
        limit = 20
        group.dead.replay(letter.event.id)
        await until(lambda: sink_.sent and sent(sink_.sent)[-1].n == 2)
        messages = sent(sink_.sent)
        assert [m.n for m in messages] == sorted(m.n for m in messages)
        assert as_table(messages) == table(url)


async def test_an_outage_in_the_middle_sends_nothing_twice_that_was_accepted(url: str, box: Outbox) -> None:
    make(box, url, inline_rows=0, chunk_rows=10)
    fill(url, 1, 300)
    box.feeds.refresh(None, "items")
    to = sink()

    def verdict(message: Message) -> Answer:
        if len(to.sent) >= 100:
            to.away = "maintenance"
        return None

    to.verdict = verdict
    async with relay(url, to) as running:
        await asyncio.wait_for(to.refused.wait(), 20)
        before = len(to.sent)
        assert 100 <= before < 300
        to.verdict, to.away = lambda message: None, None
        await running.drain()
        assert await running.failing() == 0
    assert len(to.sent) == 300


async def test_a_stop_in_the_middle(url: str, box: Outbox) -> None:
    """The next relay begins the delta anew, with the same ids."""
    make(box, url, inline_rows=0, chunk_rows=10)
    fill(url, 1, 1000)
    box.feeds.refresh(None, "items")
    to = sink()
    to.gate = asyncio.Event()
    async with relay(url, to) as running:
        await until(lambda: len(to.calls) == 4)
        running.halt()
        to.gate.set()
    assert 0 < len(to.sent) < 1000
    again = await drained(url, sink())
    assert len(again) == 1000
    assert {m.headers["event_id"] for m in sent(to.sent)} < {m.headers["event_id"] for m in again}
    assert one(url, "SELECT count(*) FROM outbox_event_parked") == 0


async def test_rows_that_are_not_kept_any_more(url: str, box: Outbox) -> None:
    make(box, url, inline_rows=0, chunk_rows=10)
    for first in (1, 31, 61):
        fill(url, first, first + 29)
        box.feeds.refresh(None, "items")
    rows(url, "UPDATE outbox_event_feed_chunk SET payload = '[]' WHERE n = 1 AND chunk = 1")
    rows(url, "DELETE FROM outbox_event_feed_chunk WHERE n = 2 AND chunk = 0")
    rows(url, "DELETE FROM outbox_event_feed_delta WHERE n = 3")
    group = box.topics.group("items", "broker")
    errors = [
        "0 deleted and 20 inserted rows, and should have 0 and 30",
        "rows of delta 2 of feed 'items' are not kept any more",
        "rows of delta 3 of feed 'items' are not kept any more",
    ]
    to = sink()
    async with relay(url, to) as running:
        for number, error in enumerate(errors, 1):
            await until(lambda number=number: running.counts.dead == number)  # type: ignore[misc]
            await running.drain()
            letters = {letter.event.headers["feed-n"]: letter.error for letter in group.dead.list()}
            assert len(letters) == number  # the next one waits …
            assert error in str(letters[str(number)])
            group.keys.release("items")  # … until the operator lets the feed go on
    assert {m.n for m in sent(to.sent)} == {1}


# -- bounds ----------------------------------------------------------------------------------------------


async def test_memory_is_that_of_a_few_calls_however_large_a_delta_is(url: str, box: Outbox) -> None:
    """50,000 rows. While the broker takes its time nothing more is read; in the end ten times the rows were no more
    memory."""
    make(box, url, inline_rows=0, mode="full")
    fill(url, 1, 5_000)
    box.feeds.refresh(None, "items")
    fill(url, 5_001, 50_000)
    rows(url, "UPDATE item SET big = 0 WHERE price < 5001")
    box.feeds.refresh(None, "items")

    class Counting(ScriptedSink):
        accepted = 0
        waiting: set[int] = set()  # noqa: RUF012 - one sink

        async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
            self.accepted += len(messages)
            await asyncio.sleep(0)
            return [None] * len(messages)

    peaks = []
    to = Counting(tombstones=True)
    tracemalloc.start()
    try:
        async with relay(url, to, settings=Settings()) as running:
            for upto in (5_000, 55_000):
                await until(lambda upto=upto: to.accepted >= upto)  # type: ignore[misc]
                peaks.append(tracemalloc.get_traced_memory()[1])
            await running.drain()
    finally:
        tracemalloc.stop()
    assert to.accepted == 55_000
    assert peaks[1] < 1.5 * peaks[0], peaks

    slow = sink()
    slow.gate = asyncio.Event()
    async with relay(url, slow, group="slow"):
        await until(lambda: len(slow.calls) == QUICK.delivery.workers)
        read = [len(call) for call in slow.calls]
        slow.gate.set()
    assert read == [50] * QUICK.delivery.workers


# -- a topic of many -------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_rows", [True, False])
async def test_of_a_topic_that_has_more_only_this_feed_goes_out(url: str, box: Outbox, as_rows: bool) -> None:
    make(box, url, topic="shared")
    box.feeds.create(Feed("other", "SELECT shop, code FROM item", key=("shop", "code"), mode="full", topic="shared"))
    fill(url, 1, 5)
    for name in ("items", "other"):
        box.feeds.refresh(None, name)
    with box.transaction() as tx:
        box.write_all(tx, [Event("Happened", {}, topic="shared", key="items")])
    to = sink()
    async with relay(url, to, topic="shared", rows=as_rows) as running:
        await running.drain()
        assert (running.counts.done, running.counts.ignored) == (3, 2)
    if as_rows:
        assert [m.op for m in sent(to.sent)] == ["c"] * 5
    else:
        [message] = to.sent
        assert (message.key, message.attributes["feed"]) == ("items", "items")
        assert len(json.loads(message.body)["inserted"]) == 5


async def test_deltas_as_they_are_also_wait_for_one_that_was_refused(url: str, box: Outbox) -> None:
    make(box, url)
    for first in (1, 11):
        fill(url, first, first + 9)
        box.feeds.refresh(None, "items")
    to = sink(lambda message: Reject("never"))
    async with relay(url, to, rows=False) as running:
        await until(lambda: running.counts.dead == 1)
        await running.drain()
        assert (running.counts.dead, len(to.sent)) == (1, 0)
        assert (await running.status()).retrying + (await running.failing()) > 0


# -- what is refused -------------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(url: str, box: Outbox) -> None:
    make(box, url)
    group = box.topics.group("items", "g")
    for options, words in [
        ({"source": box, "feed": "items"}, "a group of its topic"),
        ({"feed": "items", "ordered": False}, "in order"),
        ({"feed": "items", "fair": "tenant"}, "in order"),
        ({"rows": True}, "give it as feed="),
        ({"feed": "items", "tombstones": True}, "goes with rows=True"),
        ({"feed": "items", "rows": True, "tombstones": True, "sink": sink(tombstones=False)}, "without a body"),
        ({"feed": "items", "settings": QUICK.replaced({"order.on_exhausted": "skip"})}, "is parked"),
        ({"feed": "items", "source": box.topics.group("items", "g", on_exhausted="block")}, "is parked"),
        ({"feed": "items", "source": box.topics.group("items", "g", ordered=False)}, "in their order"),
    ]:
        given: dict[str, Any] = {"source": group, "sink": sink(), "to": "x", **options}
        with pytest.raises(ConfigError, match=words):
            Relay(given.pop("source"), given.pop("sink"), **given)
    with pytest.raises(NotFound, match="no feed 'nothing'"):
        Relay(group, sink(), to="x", feed="nothing").once()
    other = Feed("other", "SELECT shop, code FROM item", key=("shop", "code"), mode="full")
    box.feeds.create(other)
    with pytest.raises(ConfigError, match="writes to topic 'other'"):
        Relay(group, sink(), to="x", feed="other").once()


def test_the_command(url: str, box: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(box, url)
    fill(url, 1, 3)
    box.feeds.refresh(None, "items")
    fill(url, 4, 4)
    file = tmp_path / "rows.jsonl"
    monkeypatch.setenv("RELAYBOX_URL", url)

    def run(*arguments: str) -> Any:
        command = ["relay", "--sink", f"jsonl://{file}", "--to", "x", *arguments]
        return CliRunner().invoke(app, command)

    done = run("--feed", "items", "--group", "new", "--rows", "--snapshot", "--once")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    ops = [line["data"]["op"] for line in lines]
    assert ops == ["c"] + ["r"] * 4  # what the snapshot's refresh found, and the snapshot
    file.unlink()
    monkeypatch.setenv("RELAYBOX_RELAY_ROWS", "true")
    assert run("--feed", "items", "--group", "all", "--from", "earliest", "--once").exit_code == 0
    assert [json.loads(line)["data"]["op"] for line in file.read_text().splitlines()] == ["c"] * 4 + ["r"] * 4
    for arguments, words in [
        (["--feed", "items"], "need --group"),
        (["--feed", "items", "--topic", "items", "--group", "g"], "give --topic or --feed"),
        (["--snapshot"], "goes with --feed"),
        (["--group", "g"], "go with --topic or --feed"),
    ]:
        refused = run(*arguments)
        assert refused.exit_code == 2
        assert words in " ".join(refused.output.split()), refused.output
    assert run("--feed", "nothing", "--group", "g").exit_code == 1

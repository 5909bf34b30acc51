"""What must be shown of delivery, one command each:

python -m chaos.seams.show hot-key       one key with 10,000 events before 1,000 others, default settings
python -m chaos.seams.show black-hole    all connections fall silent: delivery goes on within twice database_timeout
python -m chaos.seams.show sigterm       1,000 queued events and listeners of 3 s: nothing begins, nothing runs twice
python -m chaos.seams.show fail-over     400 events in flight, the standby lost its tail; --times N
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from itertools import pairwise
from typing import Any

from relaybox import AsyncOutbox, AsyncRelay, Event, Listeners, Outbox, StartFrom, Topic
from relaybox.spi import Answer, Features, Message

from .checker import SECOND, judge, missing
from .products import DATABASE, GROUP, INBOX, POSTGRES, TOPIC, TYPE, connect, execute, prepare
from .trial import Plan, Trial
from .world import World

HOT, OTHERS, EACH = 10_000, 1_000, 0.005
Handle = Callable[[Event], Awaitable[None]]


# -- one busy key -----------------------------------------------------------------------------------------------


class SlowSink:
    """Takes five milliseconds for every message."""

    name = "slow"
    features = Features(keyed_order=True, dedup=False)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def open(self) -> None: ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        for message in messages:
            await self._handle(message.event)
        return [None] * len(messages)

    async def probe(self) -> None: ...

    async def close(self) -> None: ...


async def _deliver(product: str, url: str, handle: Handle, stack: AsyncExitStack) -> None:
    if product == "relay":
        await stack.enter_async_context(AsyncRelay(url, SlowSink(handle), to="out"))
    elif product == "ordered":
        listeners = Listeners()
        listeners.on(TYPE)(handle)
        box = await stack.enter_async_context(AsyncOutbox(url))
        await stack.enter_async_context(box.deliver(listeners, ordered=True))
    else:
        box = await stack.enter_async_context(AsyncOutbox(url))
        group = box.topics.group(TOPIC, GROUP, start=StartFrom.earliest())
        await stack.enter_async_context(group.deliver(handle))


async def hot_key(product: str, url: str) -> list[str]:
    topic = TOPIC if product == "ordered group" else None
    with Outbox(url) as box:
        box.migrate()
        if topic:
            box.topics.configure(Topic.pub_sub(TOPIC))
        keys = ["hot"] * HOT + [f"other-{number}" for number in range(OTHERS)]
        numbers: Counter[str] = Counter()
        with closing(connect(url)) as connection:
            for start in range(0, len(keys), 500):
                events = []
                for key in keys[start : start + 500]:
                    numbers[key] += 1
                    events.append(Event(TYPE, numbers[key], key=key, topic=topic))
                execute(connection, "BEGIN")
                box.write_all(connection, events)
                execute(connection, "COMMIT")
    first: float | None = None
    seen: defaultdict[str, list[int]] = defaultdict(list)
    over = asyncio.Event()

    async def handle(event: Event) -> None:
        nonlocal first
        if event.key != "hot" and first is None:
            first = time.monotonic() - began
        await asyncio.sleep(EACH)
        assert event.key is not None
        seen[event.key].append(event.payload)
        if len(seen) > OTHERS and len(seen["hot"]) >= HOT:
            over.set()

    async with AsyncExitStack() as stack:
        began = time.monotonic()
        await _deliver(product, url, handle, stack)
        await asyncio.wait_for(over.wait(), 300)
    swapped = sum(b < a for found in seen.values() for a, b in pairwise(found))
    print(f"hot-key, {product}: first of the others after {first:.2f} s, {swapped} out of order", flush=True)
    problems = [] if first is not None and first <= 1.0 else [f"{product}: the others waited {first} s"]
    return problems + ([f"{product}: {swapped} out of order"] if swapped else [])


# -- scenes of a trial ------------------------------------------------------------------------------------------


class Scene(Trial):
    """A trial whose middle is written here."""

    def __init__(self, product: str, world: World, fault: str = "", settings: dict[str, Any] | None = None) -> None:
        super().__init__(Plan(product, POSTGRES, fault=fault), world, keep=True)
        self._more = settings or {}

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | self._more

    def handled(self) -> dict[str, int]:
        """When each message was first begun."""
        self._read_broker()
        found: dict[str, int] = {}
        for note in self._notes():
            if note.op == "begin":
                found[note.id] = min(note.at, found.get(note.id, note.at))
        return found

    def written(self) -> dict[str, int]:
        return {note.id: note.at for note in self._notes() if note.op == "acked"}


def black_hole(product: str, world: World) -> list[str]:
    scene = Scene(product, world, "black hole")

    def act() -> None:
        begin = time.monotonic_ns()
        assert scene.gate is not None
        scene.gate.strand()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            fresh = {id for id, at in scene.written().items() if at > begin}
            times = [at for id, at in scene.handled().items() if id in fresh]
            if times:
                scene.after = (min(times) - begin) / SECOND  # type: ignore[attr-defined]
                return
            time.sleep(0.02)
        scene.after = float("inf")  # type: ignore[attr-defined]

    scene._break = act  # type: ignore[method-assign]
    scene.run()
    after = getattr(scene, "after", float("inf"))
    print(f"black-hole, {product}: goes on after {after:.2f} s (database_timeout {DATABASE:g} s)", flush=True)
    return [] if after <= 2 * DATABASE else [f"{product}: went on after {after:.2f} s"]


def sigterm(product: str, world: World, *, cut: bool) -> list[str]:
    """With `cut` the listeners take longer than the process may take to stop: what was cut off is named."""
    times = {"delivery.stop_timeout": 1.0 if cut else 6.0, "delivery.timeout": 30.0}
    scene = Scene(product, world, settings=times)
    problems: list[str] = []
    with scene._stack:
        scene._open()
        prepare(scene.product, scene.engine, scene.direct, {})
        _queue(scene, 1_000)
        scene.flag("slow", 3.0)
        scene.flag("stop", 1)
        scene._start_receivers()
        receiver = scene.receivers[1]  # the asynchronous one
        scene.receivers[0].kill()
        scene.begun(4, 20.0)
        time.sleep(1.0)
        assert receiver.process is not None
        receiver.signal(signal.SIGTERM)
        status = receiver.process.wait(30)
        notes = [note for note in scene._notes() if note.who.startswith("r2-1")]
        begun = {note.id for note in notes if note.op == "begin"}
        ended = {note.id for note in notes if note.op in ("done", "failed")}
        said = receiver.log_path.read_text()
        unnamed = [id for id in begun - ended if id not in said]
        scene.flag("slow", 0.0)
        for one in scene.receivers:
            one.start()
        truth = scene._truth()
        deadline = time.monotonic() + 60
        while scene._left(truth) and time.monotonic() < deadline:
            time.sleep(0.1)
        for one in scene.receivers:
            one.stop()
        notes = scene._notes()
        finished = {(n.stream, n.id) for n in notes if n.op == "done" and n.who == "r2-1"}
        twice = [n.id for n in notes if n.op == "begin" and n.who[-1] == "2" and (n.stream, n.id) in finished]
        report = judge(truth, notes, [], scene.product.promise(), scene._effects())
        late = report.violations.get("late", [])
        lost = missing(truth, notes, scene.product.promise()) if not scene.product.effects else set()
    words = f"{len(begun - ended)} cut off, {len(unnamed)} of them not named"
    print(
        f"sigterm, {product}{', cut' if cut else ''}: {words}, {len(late)} began late, {len(twice)} twice", flush=True
    )
    for what, found in (("late", late), ("twice", twice), ("not named", unnamed), ("lost", lost)):
        if found:
            problems.append(f"{product}: {len(found)} {what}")
    if status != 0:
        problems.append(f"{product}: ended with {status}")
    return problems


def _queue(scene: Scene, count: int) -> None:
    """All at once, before anybody is there."""
    from relaybox import Inbox

    with closing(connect(scene.direct)) as connection:
        execute(connection, "BEGIN")
        events = []
        for number in range(count):
            key = f"k{number}"
            topic = TOPIC if scene.product.topic else None
            event = Event(TYPE, {"n": 1}, key=key, id=str(uuid.uuid4()), topic=topic, headers={"sequence": "1"})
            execute(connection, "INSERT INTO seam_truth VALUES (%s, %s, %s)", (event.id, key, 1))
            events.append(event)
        if scene.product.inbox:
            with Inbox(scene.direct, INBOX) as inbox:
                inbox.accept_all(connection, events)
        else:
            with Outbox(scene.direct) as box:
                box.write_all(connection, events)
        execute(connection, "COMMIT")


def fail_over(product: str, world: World) -> list[str]:
    scene = Scene(product, world, "fail-over")
    truths: list[str] = []

    def act() -> None:
        assert scene.fault is not None
        scene.flag("slow", 1.0)
        begin = time.monotonic_ns()
        assert scene.standby is not None
        scene.load(200)
        scene.standby.cut()
        scene.load(400, 30.0)
        scene.fault.end(scene)
        scene.windows.append(scene.window(begin))
        scene.load(100, 30.0)
        truths.extend(_lag_problems(scene))

    scene._break = act  # type: ignore[method-assign]
    result = scene.run()
    verdict = result["verdict"]
    print(f"fail-over, {product}: {verdict}, {result.get('messages')} messages", *truths, flush=True)
    for line in (*result.get("examples", ()), result.get("folder")) if verdict != "PASS" else ():
        print(f"    {line}", flush=True)
    return [f"{product}: {text}" for text in truths] + ([] if verdict == "PASS" else [f"{product}: {verdict}"])


def _lag_problems(scene: Scene) -> list[str]:
    """While much is unhandled, the lag says so: much that is there before it is asked and not handled after."""
    if scene.product.inbox:
        return []
    truth = scene._truth()
    with Outbox(scene.direct) as box:
        if scene.product.topic:
            lag = box.topics.group(TOPIC, GROUP).lag()
            seen = lag.events + lag.taken + lag.parked
        else:
            status = box.status()
            seen = status.due + status.claimed + status.delayed
    handled = scene.handled()
    waiting = [id for id in truth if id not in handled]
    return [] if seen or not waiting else [f"lag says 0 while {len(waiting)} wait"]


SHOWN = ("plain", "ordered by shards", "relay", "push group, ordered", "inbox, async")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="chaos.seams.show", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("hot-key", "black-hole", "sigterm", "fail-over"))
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--product", action="append", default=[])
    given = parser.parse_args()
    problems: list[str] = []
    with World() as world:
        for _ in range(given.times):
            match given.what:
                case "hot-key":
                    for product in given.product or ("ordered", "relay", "ordered group"):
                        url = world.server(POSTGRES, "plain").create_database()
                        problems += asyncio.run(hot_key(product, url))
                case "black-hole":
                    for product in given.product or SHOWN:
                        problems += black_hole(product, world)
                case "sigterm":
                    for product in given.product or (
                        "plain",
                        "ordered by shards",
                        "push group, ordered",
                        "inbox, async",
                    ):
                        for cut in (False, True):
                            problems += sigterm(product, world, cut=cut)
                case "fail-over":
                    for product in given.product or (*SHOWN, "push group, bitmap"):
                        problems += fail_over(product, world)
    print("PASS" if not problems else "FAIL: " + "; ".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

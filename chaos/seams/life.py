"""Life events: what operators and deployments do to a product while it works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relaybox import ALL, AsyncMaintainer, Inbox, Outbox, StartFrom
from relaybox.errors import NotFound
from relaybox.topics.group import Group

from .products import BESIDE, GROUP, INBOX, TOPIC, TTL, Product
from .world import eventually

if TYPE_CHECKING:
    from .trial import Trial

LATE = "late"  # a group that comes when others have been there for long
GONE = "gone"  # a group that is cancelled
PATIENCE = 25.0
OTHER = {"offset": "acks", "bitmap": "offset", "acks": "bitmap"}


@dataclass(frozen=True, slots=True)
class Life:
    name: str
    about: str
    act: Callable[[Trial], None]
    fits: Callable[[Product], str]  # why not; empty if it does
    duplicates: bool = False
    again: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    topic: dict[str, float] = field(default_factory=dict)  # options, in seconds
    alone: dict[str, float] = field(default_factory=dict)  # more, where no fault keeps a group from moving
    poison: bool = False  # some messages fail until they are mended
    streams: tuple[str, ...] = ()  # more groups that must have everything
    settle: Callable[[Trial], None] | None = None  # again and again until all is delivered


def only_topics(product: Product) -> str:
    return "" if product.topic else "not a topic"


def logs(product: Product) -> str:
    """Groups that can be stopped and moved."""
    return only_topics(product)


def pub_sub(product: Product) -> str:
    if product.kind == "queue":
        return "a queue has one group"
    return only_topics(product)


def everything(product: Product) -> str:
    return ""


def patiently(trial: Trial, act: Callable[[], None]) -> None:
    """A fault may be under way: an operator tries again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            act()
            return
        except Exception as error:
            if time.monotonic() > deadline:
                raise
            trial.log(f"life: {type(error).__name__}: {error}"[:300])
            time.sleep(0.3)


def operate(trial: Trial, act: Callable[[Outbox], Any]) -> None:
    def once() -> None:
        with Outbox(trial.direct) as box:
            act(box)

    patiently(trial, once)


def group_of(trial: Trial) -> str:
    return "default" if trial.product.kind == "queue" else GROUP


def pause_and_resume(trial: Trial) -> None:
    """Handlers are slow when it is resumed: a maintainer looks before the group has moved."""
    group = group_of(trial)
    operate(trial, lambda box: box.topics.group(TOPIC, group).pause(reason="trial"))
    time.sleep(5.0 if trial.fault is None else 1.5)
    trial.flag("slow", 0.5)
    operate(trial, lambda box: box.topics.group(TOPIC, group).resume(reason="trial"))
    time.sleep(1.0)
    trial.unflag("slow")


def die_and_return(trial: Trial) -> None:
    """All receivers are gone for longer than anybody waits for them."""
    for receiver in trial.receivers:
        receiver.kill()
    if trial.product.topic and trial.product.kind == "group":
        group = group_of(trial)

        def dead() -> bool:
            for receiver in trial.receivers:  # what a fault started again
                receiver.kill()
            with Outbox(trial.direct) as box:
                return box.topics.group(TOPIC, group).info().state == "dead"

        patiently(trial, lambda: eventually("the group is dead", dead, 10.0))
    else:
        time.sleep(TTL * 1.5)
    for receiver in trial.receivers:
        receiver.start()


def cancel(trial: Trial) -> None:
    """Another group of the topic comes and goes."""
    operate(trial, lambda box: box.topics.group(TOPIC, GONE, start=StartFrom.earliest()).create(if_not_exists=True))
    time.sleep(0.7)

    def cancelled(box: Outbox) -> None:
        with suppress(NotFound):  # a fail-over forgot it
            box.topics.group(TOPIC, GONE).cancel(reason="trial")

    operate(trial, cancelled)


def seek(trial: Trial) -> None:
    group = group_of(trial)
    operate(trial, lambda box: box.topics.group(TOPIC, group).seek(StartFrom.earliest(), reason="trial"))


def move(trial: Trial) -> None:
    was = trial.product.tracking
    to: Any = OTHER[was] if trial.product.kind != "queue" else ("offset" if was == "rows" else "rows")
    operate(trial, lambda box: box.topics.move(TOPIC, tracking=to))
    if trial.product.kind == "queue":  # "consumers of the queue start anew when the move is over"
        for receiver in trial.receivers:
            receiver.stop()
            receiver.start()


def backfill(trial: Trial) -> None:
    """A group comes late, and is given what was written before."""

    def late(box: Outbox) -> Group:
        return box.topics.group(TOPIC, LATE, start=StartFrom.earliest(), ordered=trial.product.ordered)

    operate(trial, lambda box: late(box).create(if_not_exists=True))
    if trial.product.tracking in ("bitmap", "acks"):
        operate(trial, lambda box: late(box).backfill(pace="normal"))
    trial.receive_as(LATE)


def rebalance(trial: Trial) -> None:
    """A process comes and another goes."""
    new = trial.add_receiver()
    new.wait_ready()
    trial.receivers[0].stop()
    trial.receivers[0].start()


def mend_and_replay(trial: Trial) -> None:
    time.sleep(0.5)
    trial.flag("healed", 1)
    replay(trial)


def replay(trial: Trial) -> None:
    def once() -> None:
        if trial.product.inbox:
            with Inbox(trial.direct, INBOX) as inbox:
                inbox.dead.replay(ALL)
            return
        with Outbox(trial.direct) as box:
            if not trial.product.topic:
                box.dead.replay(ALL)
                return
            for group in (GROUP, BESIDE) if trial.product.kind == "group" else (group_of(trial),):
                box.topics.group(TOPIC, group).dead.replay(ALL, reason="trial")

    patiently(trial, once)


def retention_due(trial: Trial) -> None:
    """What is handled is old at once: processes and maintainers delete it while the rest is on its way."""
    time.sleep(2.0)


def purge(trial: Trial) -> None:
    def once() -> None:
        if trial.product.inbox:
            with Inbox(trial.direct, INBOX) as inbox:
                inbox.purge(done="1ms")
        elif trial.product.topic:
            asyncio.run(clean(trial.direct))
        else:
            with Outbox(trial.direct) as box:
                box.purge(done="1ms")

    for _ in range(4):
        patiently(trial, once)
        time.sleep(0.3)


async def clean(url: str) -> None:
    await AsyncMaintainer(url, jobs=("ticks", "thin", "partitions", "cleanup", "groups")).once()


def migrate(trial: Trial) -> None:
    """The next deployment begins with it."""

    def once() -> None:
        if not trial.product.inbox:
            with Outbox(trial.direct) as box:
                box.migrate()
        elif not trial.product.adopted:
            with Inbox(trial.direct, INBOX) as inbox:
                inbox.migrate()

    for _ in range(3):
        patiently(trial, once)
        time.sleep(0.2)


LIVES = {
    life.name: life
    for life in (
        Life(
            "pause and resume",
            "by an operator, for longer than an idle group may stand still",
            pause_and_resume,
            logs,
            topic={"retention": 0.5},
            alone={"zombie_ttl": 4.0},
        ),
        Life(
            "die and return",
            "all receivers killed and missed",
            die_and_return,
            everything,
            duplicates=True,
            topic={"heartbeat_timeout": 2.5, "zero_retention": 0.5},
        ),
        Life("cancel", "another group comes and is cancelled", cancel, pub_sub),
        Life("seek", "back to the beginning", seek, pub_sub, again=True),
        Life("move", "to another tracking", move, only_topics, duplicates=True),
        Life("backfill", "a group that comes late", backfill, pub_sub, streams=(LATE,)),
        Life("rebalance", "a process comes, another goes", rebalance, everything),
        Life(
            "replay",
            "of what died, when it is mended",
            mend_and_replay,
            lambda product: "a relay has no handlers to mend" if product.kind == "relay" else "",
            again=True,
            poison=True,
            settle=replay,
        ),
        Life(
            "retention due",
            "what is handled may be deleted at once",
            retention_due,
            everything,
            settings={
                "outbox.retention": 0.5,
                "outbox.purge_interval": 0.3,
                "inbox.retention": 0.5,
                "inbox.purge_interval": 0.3,
            },
            topic={"retention": 0.5, "zero_retention": 0.5},
        ),
        Life("purge", "by an operator", purge, everything, topic={"retention": 0.5, "zero_retention": 0.5}),
        Life("migrate", "again, while all runs", migrate, everything),
    )
}

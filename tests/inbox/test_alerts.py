"""Alerts: everything new is told once, by one of those that look, and what is over is told as over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import Probe
from relaybox import Event, Inbox, Reject
from relaybox.clock import SYSTEM_CLOCK
from relaybox.facts import Alert, Observers
from relaybox.inbox.alerts import AlertService
from relaybox.inbox.purge import retention_of
from relaybox.store.inbox.alerts import Span, compare
from relaybox.store.inbox.gaps import Gap
from relaybox.testing.clock import ManualClock
from relaybox.types import InboxSettings, Order, Retention

from .effects import QUICK
from .kit import Twin, agreed, inbox_url, processed, serving

DEAD, GAP = "inbox_dlq_message", "inbox_ordering_gap"
OFTEN = QUICK.replaced({"inbox.alert_interval": "20ms", "inbox.gap_delay": "1us"})


def refuse(event: Event, _: Any) -> None:
    raise Reject("secret text")


def numbered(n: int, key: str = "k") -> Event:
    return Event("A", {}, key=key, id=f"{key}-{n}", headers={"sequence": str(n)})


def nothing(event: Event, _: Any) -> None: ...


async def test_dead_letters_are_told_once_and_many_are_counted(url: str, is_async: bool) -> None:
    """The first few one by one, the rest in one."""
    with Inbox(url) as inbox:
        inbox.accept_all(None, [Event("A", n, id=f"m{n}") for n in range(7)])
        processed(inbox, refuse, settings=QUICK)
        few = QUICK.replaced({"inbox.alerts_per_look": 3})
        async with Twin(url, is_async=is_async, settings=few) as twin:
            told = await twin.call("alerts")
            assert [alert.name for alert in told] == [DEAD] * 4
            assert {alert.topic for alert in told} == {"inbox"}
            assert [alert.text for alert in told] == [
                *(f"message m{n} (A) died at attempt 1: Reject" for n in range(3)),
                "4 more messages died",
            ]
            assert await twin.call("alerts") == []
            inbox.dead.replay("m5")
            processed(inbox, refuse, settings=QUICK)
            assert [alert.text for alert in await twin.call("alerts")] == ["message m5 (A) died at attempt 1: Reject"]


async def test_a_gap_is_told_after_a_while_and_when_it_is_over(url: str, is_async: bool) -> None:
    clock = ManualClock()
    slow = QUICK.replaced({"inbox.gap_delay": "60s"})
    async with Twin(url, is_async=is_async, order=Order(), clock=clock, settings=slow) as twin:
        with agreed(url, order=Order(), clock=clock) as inbox:
            inbox.accept_all(None, [numbered(1), numbered(5), numbered(6), numbered(2, "q'")])
            processed(inbox, nothing, settings=QUICK)
            assert await twin.call("alerts") == []
            clock.advance(61)
            told = await twin.call("alerts")
            assert sorted(alert.text.partition(" missing")[0] for alert in told) == [
                """key "q'", number 1""",
                "key 'k', numbers 2 to 4",
            ]
            assert {(alert.name, alert.over) for alert in told} == {(GAP, False)}
            assert await twin.call("alerts") == []
            inbox.accept(None, numbered(3))
            clock.advance(61)
            processed(inbox, nothing, settings=QUICK)
            assert await twin.call("alerts") == [], "it is the same gap, half full"
            inbox.accept_all(None, [numbered(2), numbered(4)])
            processed(inbox, nothing, settings=QUICK)
        assert await twin.call("alerts") == [Alert(GAP, "inbox", text="key 'k', numbers 2 to 4", over=True)]
        assert await twin.call("alerts") == []


def test_many_gaps_are_counted(url: str) -> None:
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered(2, f"k{n}") for n in range(5)])
        processed(inbox, nothing, settings=QUICK)
        inbox.settings = OFTEN.replaced({"inbox.alerts_per_look": 2})
        assert [alert.text for alert in inbox.alerts()][2:] == ["3 more gaps"]
        for n in range(5):
            inbox.keys.release(f"k{n}")
        over = inbox.alerts()
        assert [alert.over for alert in over] == [True] * 3
        assert over[2].text == "3 more gaps"


def gap(first: int, last: int, key: str = "k", age: int = 9) -> Gap:
    return Gap(key, first, last, timedelta(seconds=age), datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("told", "gaps", "new", "over"),
    [
        ([], [gap(2, 4)], [gap(2, 4)], []),
        ([], [gap(2, 4, age=1)], [], []),
        ([Span("k", 2, 4)], [gap(2, 4)], [], []),
        ([Span("k", 2, 4)], [gap(3, 3, age=1)], [], []),
        ([Span("k", 2, 4)], [gap(2, 2), gap(4, 4)], [], []),
        ([Span("k", 2, 4)], [], [], [Span("k", 2, 4)]),
        ([Span("k", 2, 4)], [gap(7, 8)], [gap(7, 8)], [Span("k", 2, 4)]),
        ([Span("k", 2, 4)], [gap(2, 4, "other")], [gap(2, 4, "other")], [Span("k", 2, 4)]),
        ([Span("k", 2, 4)], [gap(2, 4), gap(7, 8)], [gap(7, 8)], []),
    ],
)
def test_what_is_new_and_what_is_over(told: list[Span], gaps: list[Gap], new: list[Gap], over: list[Span]) -> None:
    assert compare(told, gaps, timedelta(seconds=5)) == (new, over)


async def test_several_processors_tell_each_once(url: str) -> None:
    probe = Probe()
    with agreed(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered(2), Event("A", 1, id="bad")])
        with (
            serving(inbox, refuse, settings=OFTEN, observers=[probe]),
            serving(inbox, refuse, settings=OFTEN, observers=[probe]),
        ):
            await probe.until(lambda: len(probe.of(Alert)) == 2)
            inbox.keys.release("k")  # number 2 runs, and dies
            await probe.until(lambda: len(probe.of(Alert)) >= 4)
    assert sorted((alert.name, alert.over) for alert in probe.of(Alert)) == [
        (DEAD, False),
        (DEAD, False),
        (GAP, False),
        (GAP, True),
    ]


async def test_the_log_has_no_payload_and_no_text_of_an_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Inbox(url) as inbox, caplog.at_level(logging.WARNING, "relaybox"):
        inbox.accept(None, Event("A", "PAYLOAD"))
        processed(inbox, refuse, settings=QUICK)
        inbox.alerts()
    assert DEAD in caplog.text
    assert "secret text" not in caplog.text
    assert "PAYLOAD" not in caplog.text


async def heard(url: str, channel: str, act: Callable[[], Any]) -> list[str]:
    """The payloads that come on a channel while something is done."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as listener:
        await listener.execute(f'LISTEN "{channel}"')
        await asyncio.to_thread(act)
        return [note.payload async for note in listener.notifies(timeout=20, stop_after=1)]


async def test_alerts_by_notify(tmp_path: Any) -> None:
    url = inbox_url("postgres", tmp_path)
    with Inbox(url) as inbox:
        inbox.accept(None, Event("A", 1, id="m1"))
        processed(inbox, refuse, settings=QUICK)
        assert await heard(url, "relaybox_inbox_alert", inbox.alerts) == [""], "any role may listen"


def test_the_settings_say_the_same_by_default() -> None:
    assert retention_of(InboxSettings()) == Retention()
    assert retention_of(InboxSettings(retention="1h", dead_retention="7d", seen_retention=None)) == Retention(
        done=timedelta(hours=1), dead=timedelta(days=7), seen=None
    )


async def test_a_stop_waits_for_a_look_under_way(tmp_path: Path) -> None:
    """What counts as told in the database must be told."""
    url = inbox_url("sqlite", tmp_path)
    looked, told = asyncio.Event(), list[Alert]()

    class Slow:
        async def run(self, op: Any, *, tx: bool = True) -> Any:
            op.close()
            looked.set()
            await asyncio.sleep(0.05)
            return [Alert(DEAD, "inbox")]

    def observe(fact: Any) -> None:
        told.append(fact)

    with Inbox(url) as inbox:
        db: Any = Slow()
        service = AlertService(db, inbox.store, OFTEN.inbox, None, Observers([observe]), SYSTEM_CLOCK)
        service.start()
        await looked.wait()
        await service.stop()
    assert told[:1] == [Alert(DEAD, "inbox")]

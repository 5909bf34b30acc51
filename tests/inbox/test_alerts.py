"""Alerts: everything new is told once, by one of those that look, and what is over is told as over."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flow.kit import Probe
from relaybox import ConfigError, Event, Reject, Settings
from relaybox.clock import SYSTEM_CLOCK
from relaybox.facts import Alert, Observers
from relaybox.inbox import Alerting, Gap, Inbox, Order, Retention
from relaybox.inbox.alerts import AlertService
from relaybox.store.inbox.alerts import Span, compare
from relaybox.testing.clock import ManualClock

from .effects import QUICK
from .kit import Twin, fresh_url, migrated

DEAD, GAP = "inbox_dlq_message", "inbox_ordering_gap"
OFTEN = Alerting(interval=timedelta(milliseconds=20), gap_delay=timedelta(0))


def refuse(event: Event, _: Any) -> None:
    raise Reject("secret text")


def numbered(n: int, key: str = "k") -> Event:
    return Event("A", {}, key=key, id=f"{key}-{n}", headers={"sequence": str(n)})


def nothing(event: Event, _: Any) -> None: ...


async def test_dead_letters_are_told_once_and_many_are_counted(url: str, is_async: bool) -> None:
    """The first few one by one, the rest in one."""
    with Inbox(url) as inbox:
        inbox.accept_all(None, [Event("A", n, id=f"m{n}") for n in range(7)])
        inbox.process(refuse, settings=QUICK, alerts=None)
        async with Twin(url, is_async=is_async) as twin:
            told = await twin.call("alerts", Alerting(most=3))
            assert [alert.name for alert in told] == [DEAD] * 4
            assert {alert.topic for alert in told} == {"inbox"}
            assert [alert.text for alert in told] == [
                *(f"message m{n} (A) died at attempt 1: Reject" for n in range(3)),
                "4 more messages died",
            ]
            assert await twin.call("alerts") == []
            inbox.replay(["m5"])
            inbox.process(refuse, settings=QUICK, alerts=None)
            assert [alert.text for alert in await twin.call("alerts")] == ["message m5 (A) died at attempt 1: Reject"]


async def test_a_gap_is_told_after_a_while_and_when_it_is_over(url: str, is_async: bool) -> None:
    clock = ManualClock()
    slow = Alerting(gap_delay=timedelta(seconds=60))
    async with Twin(url, is_async=is_async, order=Order(), clock=clock) as twin:
        with Inbox(url, order=Order(), clock=clock) as inbox:
            inbox.accept_all(None, [numbered(1), numbered(5), numbered(6), numbered(2, "q'")])
            inbox.process(nothing, settings=QUICK, alerts=None)
            assert await twin.call("alerts", slow) == []
            clock.advance(61)
            told = await twin.call("alerts", slow)
            assert sorted(alert.text.partition(" missing")[0] for alert in told) == [
                """key "q'", number 1""",
                "key 'k', numbers 2 to 4",
            ]
            assert {(alert.name, alert.over) for alert in told} == {(GAP, False)}
            assert await twin.call("alerts", slow) == []
            inbox.accept(None, numbered(3))
            clock.advance(61)
            inbox.process(nothing, settings=QUICK, alerts=None)
            assert await twin.call("alerts", slow) == [], "it is the same gap, half full"
            inbox.accept_all(None, [numbered(2), numbered(4)])
            inbox.process(nothing, settings=QUICK, alerts=None)
        assert await twin.call("alerts", slow) == [Alert(GAP, "inbox", text="key 'k', numbers 2 to 4", over=True)]
        assert await twin.call("alerts", slow) == []


def test_many_gaps_are_counted(url: str) -> None:
    with Inbox(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered(2, f"k{n}") for n in range(5)])
        inbox.process(nothing, settings=QUICK, alerts=None)
        few = Alerting(most=2, gap_delay=timedelta(0))
        assert [alert.text for alert in inbox.alerts(few)][2:] == ["3 more gaps"]
        for n in range(5):
            inbox.skip(f"k{n}")
        over = inbox.alerts(few)
        assert [alert.over for alert in over] == [True] * 3
        assert over[2].text == "3 more gaps"


def gap(first: int, last: int, key: str = "k", age: int = 9) -> Gap:
    return Gap(key, first, last, timedelta(seconds=age), dead=False)


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
    with Inbox(url, order=Order()) as inbox:
        inbox.accept_all(None, [numbered(2), Event("A", 1, id="bad")])
        with (
            inbox.processor(refuse, settings=QUICK, alerts=OFTEN, observers=[probe]),
            inbox.processor(refuse, settings=QUICK, alerts=OFTEN, observers=[probe]),
        ):
            await probe.until(lambda: len(probe.of(Alert)) == 2)
            inbox.skip("k")  # number 2 runs, and dies
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
        inbox.process(refuse, settings=QUICK, alerts=None)
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
    url = migrated(fresh_url("postgres", tmp_path))
    with Inbox(url) as inbox:
        inbox.accept(None, Event("A", 1, id="m1"))
        inbox.process(refuse, settings=QUICK, alerts=None)
        (payload,) = await heard(url, "relaybox_inbox_alert", inbox.alerts)
    assert json.loads(payload) == {
        "event": DEAD,
        "inbox": "inbox",
        "text": "message m1 (A) died at attempt 1: Reject",
        "over": False,
    }


@pytest.mark.parametrize("wrong", [{"most": 0}, {"interval": timedelta(0)}, {"gap_delay": timedelta(-1)}])
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Alerting(**wrong)


def test_the_settings_say_the_same_by_default() -> None:
    assert Alerting.of(Settings()) == Alerting()
    assert Retention.of(Settings()) == Retention()
    given = Settings.load(
        environment={
            "RELAYBOX_INBOX_RETENTION": "1h",
            "RELAYBOX_INBOX_DEAD_RETENTION": "7d",
            "RELAYBOX_INBOX_SEEN_RETENTION": "none",
            "RELAYBOX_INBOX_PURGE_BATCH": "5",
            "RELAYBOX_INBOX_PURGE_INTERVAL": "2s",
            "RELAYBOX_INBOX_ALERTS_PER_LOOK": "3",
            "RELAYBOX_INBOX_ALERT_INTERVAL": "4s",
            "RELAYBOX_INBOX_GAP_DELAY": "5s",
        }
    )
    assert Retention.of(given) == Retention(
        timedelta(hours=1), timedelta(days=7), None, batch=5, interval=timedelta(seconds=2)
    )
    assert Alerting.of(given) == Alerting(timedelta(seconds=4), 3, timedelta(seconds=5))


async def test_a_stop_waits_for_a_look_under_way(tmp_path: Path) -> None:
    """What counts as told in the database must be told."""
    url = migrated(fresh_url("sqlite", tmp_path))
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
        service = AlertService(db, inbox.store, OFTEN, None, Observers([observe]), SYSTEM_CLOCK)
        service.start()
        await looked.wait()
        await service.stop()
    assert told[:1] == [Alert(DEAD, "inbox")]

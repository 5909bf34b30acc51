"""Which tracking fits: the limits of the guide, and measuring on a real topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from relaybox.drivers import open_async
from relaybox.drivers.script import aplay, play
from relaybox.store.topics.completion import Counters
from relaybox.topic import Tracking
from relaybox.topics.advise import Measures, advise, between, decide

from .world import World

CALM = Measures(
    events_per_second=100,
    groups=3,
    acks_per_second=300,
    bloat=0.05,
    wal_share=0.2,
    cleanup_behind=False,
    fetch_p95=0.002,
    oldest_open=timedelta(seconds=1),
    ack_rows=None,
)


@pytest.mark.parametrize(
    ("tracking", "change", "fits", "word"),
    [
        ("bitmap", {}, "bitmap", "within"),
        ("bitmap", {"groups": 16}, "bitmap", "within"),
        ("bitmap", {"groups": 17}, "offset", "17 groups"),
        ("bitmap", {"events_per_second": 10_001}, "offset", "10,001 events/s"),
        ("bitmap", {"bloat": 0.2}, "offset", "dead rows"),
        ("bitmap", {"wal_share": 0.5, "acks_per_second": 5000}, "offset", "WAL"),
        ("bitmap", {"cleanup_behind": True}, "offset", "cleanup"),
        ("bitmap", {"fetch_p95": 0.01}, "offset", "10.0 ms"),
        ("acks", {}, "bitmap", "within"),
        ("offset", {}, "offset", "least"),
        ("rows", {}, "rows", "little"),
        ("rows", {"events_per_second": 2000}, "offset", "2,000"),
    ],
)
def test_the_limits(tracking: Tracking, change: dict[str, object], fits: Tracking, word: str) -> None:
    advice = decide("t", tracking, replace(CALM, **change))  # type: ignore[arg-type]
    assert advice.fits == fits
    assert word in " ".join(advice.why)
    assert advice.move == (fits != tracking)


def test_an_audit_needs_marks() -> None:
    """Strict all-ack or per-message audit."""
    assert decide("t", "offset", replace(CALM, groups=40), audit=True).fits == "bitmap"
    assert decide("t", "offset", replace(CALM, groups=65), audit=True).fits == "acks"


def test_what_is_near_a_limit_is_watched() -> None:
    """Also what could not be measured, which is not the same as nothing."""
    near = replace(CALM, groups=9, events_per_second=5000, oldest_open=timedelta(minutes=2), ack_rows=2 * 10**9)
    words = str(decide("t", "acks", near))
    assert all(word in words for word in ("9 groups", "5,000 events/s", "0:02:00 old", "2,000,000,000 acks"))
    assert "not measured: bloat, wal_share" in str(decide("t", "bitmap", replace(CALM, bloat=None, wal_share=None)))


def test_rates_are_differences() -> None:
    """Nothing is divided by the time since some reset."""
    first = Counters(_at(0), 1000, 2, 1000, 0, None, 50, 10, 20_000, None, None)
    last = Counters(_at(2), 1400, 2, 1400, 100, 150.0, 850, 10_000, 20_000, None, None)
    found = between(first, last, (1000, 0), (1300, 100), 0.004)
    assert (found.events_per_second, found.acks_per_second) == (200, 400)
    assert (found.wal_share, found.cleanup_behind) == (0.75, True)
    assert found.bloat == pytest.approx(1 / 3)
    quiet = between(first, replace(first, at=_at(2)), None, None, 0.0)
    assert (quiet.events_per_second, quiet.wal_share, quiet.cleanup_behind) == (0, None, None)


def _at(seconds: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


@pytest.fixture(params=["offset", "bitmap", "acks"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.close()


async def test_measured_on_a_real_topic(world: World) -> None:
    """The statements run."""
    world.join("a")
    world.write(100)
    world.drain("a")
    advice = play(advise(world.context, world.name), world.db)
    assert advice.tracking == world.topic.topic.tracking
    assert advice.measures.groups == 1
    assert advice.measures.fetch_p95 > 0
    assert advice.measures.wal_share is None or 0 <= advice.measures.wal_share <= 1
    assert (advice.measures.acks_per_second is None) == (advice.tracking == "offset")
    db = open_async(world.url)
    try:
        assert (await aplay(advise(world.context, world.name), db, world.context.clock)).measures.groups == 1
    finally:
        await db.close()


def test_a_queue_by_rows() -> None:
    world = World("rows", semantics="queue")
    try:
        assert play(advise(world.context, world.name), world.db).fits == "rows"
    finally:
        world.close()

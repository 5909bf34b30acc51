"""LogObserver: levels, structured fields, and what must never be in a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

from relaybox import facts
from relaybox.facts import (
    Accepted,
    Administered,
    Alert,
    CallsUnderWay,
    CircuitChanged,
    Claimed,
    ClaimLost,
    Cleaned,
    CutOff,
    Delivered,
    Depths,
    DestinationChanged,
    Detected,
    Died,
    EventsLost,
    Fact,
    FeedFailed,
    FeedRefreshed,
    FeedStanding,
    HotDropped,
    HotEnqueued,
    Ingested,
    KeysChosen,
    LoopFailed,
    Observers,
    OverCap,
    Published,
    Purged,
    Released,
    Replayed,
    ReplicaLag,
    Replicated,
    Retried,
    Standing,
    Strayed,
    Stuck,
    TakenOver,
    TaskEnded,
    TenantsWaiting,
    WakeUps,
    Written,
)
from relaybox.observe.logs import LogObserver

RETRIED = Retried("id-1", "OrderPlaced", 2, timedelta(seconds=1.5), "ValueError: card 4111-1111-CARD refused")
DIED = Died("id-1", "OrderPlaced", 10, "ValueError: card 4111-1111-CARD refused")

LEVELS: list[tuple[Fact, int]] = [
    (Written(1), logging.DEBUG),
    (HotEnqueued(1), logging.DEBUG),
    (HotDropped(3), logging.WARNING),
    (CutOff(2, "delivery.stop_timeout"), logging.WARNING),
    (Stuck("id", "T", 11, timedelta(0), "E"), logging.ERROR),
    (TaskEnded("worker", "E"), logging.ERROR),
    (Claimed(1, 0.1), logging.DEBUG),
    (Delivered(1), logging.DEBUG),
    (RETRIED, logging.INFO),
    (DIED, logging.ERROR),
    (Died("id-1", "T", 1, "Undecodable: x", undecodable=True), logging.CRITICAL),
    (ClaimLost(1), logging.WARNING),
    (Released(1), logging.INFO),
    (TakenOver(1, 5), logging.WARNING),
    (Strayed(2), logging.WARNING),
    (FeedRefreshed("totals", "full", 10, 0, 0.1), logging.DEBUG),
    (FeedFailed("totals", 2, "no right (42501)"), logging.WARNING),
    (FeedStanding("totals", None, None, 7, 0), logging.DEBUG),
    (Depths(1, 2, None), logging.DEBUG),
    (Alert("group_dead", "orders", "mail", "no heartbeat for 301 s"), logging.WARNING),
    (Purged(1), logging.INFO),
    (Administered("replay", "dead letters", 3, "ann@desk", "repaired"), logging.INFO),
    (Replayed(1), logging.INFO),
    (KeysChosen(5, 3), logging.DEBUG),
    (OverCap(2, "acme", refused=True), logging.DEBUG),
    (TenantsWaiting(20, 1), logging.DEBUG),
    (Published("kafka", 5, 0.1), logging.DEBUG),
    (Ingested("kafka", 4, 1, 1, 0.1), logging.DEBUG),
    (Accepted("orders", 4, 1), logging.DEBUG),
    (Cleaned(100, 1, 0.2), logging.INFO),
    (EventsLost("orders", "mail", 3), logging.DEBUG),
    (Detected(1, 100), logging.DEBUG),
    (Replicated("totals", "totals", 3, 1, copied=False), logging.DEBUG),
    (ReplicaLag("totals", 2), logging.DEBUG),
    (Standing(timedelta(seconds=3), None), logging.DEBUG),
    (DestinationChanged("webhook", "shop", "away", "it does not answer"), logging.WARNING),
    (CallsUnderWay("webhook", 3, 1, 2, 1, 0), logging.DEBUG),
    (LoopFailed("claim", "ConnectionLost: host db-7"), logging.ERROR),
    (CircuitChanged("kafka", True, "Kafka: host db-7"), logging.WARNING),
    (WakeUps("poll", "the listening connection failed: host db-7"), logging.INFO),
]


class Keeping(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[logging.LogRecord]]:
    logger, keeping = logging.getLogger("relaybox"), Keeping()
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # isEnabledFor remembers
    logger.addHandler(keeping)
    yield keeping.records
    logger.removeHandler(keeping)


def test_every_fact_is_in_the_table() -> None:
    kinds = {kind for kind in vars(facts).values() if isinstance(kind, type) and issubclass(kind, Fact)}
    assert {type(fact) for fact, _ in LEVELS} == {kind for kind in kinds if not kind.__name__.startswith("_")} - {Fact}


@pytest.mark.parametrize(("fact", "level"), LEVELS, ids=lambda value: type(value).__name__)
def test_levels(fact: Fact, level: int, records: list[logging.LogRecord]) -> None:
    LogObserver()(fact)
    (record,) = records
    assert (record.levelno, record.name) == (level, "relaybox.facts")
    assert record.__dict__["relaybox_fact"] == type(fact).__name__
    assert record.__dict__["relaybox_stage"] == fact.stage
    assert record.getMessage().startswith(f"{fact.stage} {type(fact).__name__} ")


def test_fields_are_structured(records: list[logging.LogRecord]) -> None:
    LogObserver()(RETRIED)
    fields = {name: value for name, value in records[0].__dict__.items() if name.startswith("relaybox_")}
    assert fields == {
        "relaybox_fact": "Retried",
        "relaybox_stage": "settle",
        "relaybox_event_id": "id-1",
        "relaybox_event_type": "OrderPlaced",
        "relaybox_attempts": 2,
        "relaybox_delay": 1.5,
        "relaybox_error": "ValueError",
    }
    assert records[0].getMessage() == (
        "settle Retried event_id='id-1' event_type='OrderPlaced' attempts=2 delay=1.5 error='ValueError'"
    )


@pytest.mark.parametrize("fact", [RETRIED, DIED, *(fact for fact, _ in LEVELS[-3:])])
def test_exception_text_only_on_request(fact: Fact, records: list[logging.LogRecord]) -> None:
    LogObserver()(fact)
    LogObserver(error_text=True)(fact)
    quiet, loud = (str(record.__dict__) for record in records)
    assert "4111-1111-CARD" not in quiet
    assert "db-7" not in quiet
    assert "4111-1111-CARD" in loud or "db-7" in loud


def test_own_logger_and_level(records: list[logging.LogRecord]) -> None:
    logger = logging.getLogger("relaybox.mine")
    logger.setLevel(logging.ERROR)
    observer = LogObserver(logger)
    observer(RETRIED)
    observer(DIED)
    assert [record.name for record in records] == ["relaybox.mine"]


def test_line_breaks_in_names_stay_on_one_line(records: list[logging.LogRecord]) -> None:
    LogObserver()(Died("id\nforged", "T\r\nERROR", 1, "ValueError"))
    assert "\n" not in records[0].getMessage()


# -- without any LogObserver ------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [False, True])
def test_deaths_and_drops_are_logged_even_when_nobody_watches(watched: bool, records: list[logging.LogRecord]) -> None:
    observers = Observers([lambda fact: None] if watched else [])
    for fact, _ in LEVELS:
        observers(fact)
    assert [(record.name, record.levelno) for record in records] == [
        ("relaybox", logging.WARNING),
        ("relaybox", logging.ERROR),
        ("relaybox", logging.ERROR),
        ("relaybox", logging.CRITICAL),
        ("relaybox", logging.WARNING),
        ("relaybox", logging.WARNING),
        ("relaybox", logging.INFO),
    ]
    assert not any("4111-1111-CARD" in record.getMessage() for record in records)


def test_no_line_twice_with_a_log_observer(records: list[logging.LogRecord]) -> None:
    Observers([LogObserver()])(DIED)
    assert [record.name for record in records] == ["relaybox.facts"]


def test_an_observer_that_raises_is_logged_and_the_next_is_called(records: list[logging.LogRecord]) -> None:
    seen: list[Fact] = []

    def broken(fact: Fact) -> None:
        raise RuntimeError("broken")

    Observers([broken, seen.append])(Purged(1))
    assert seen == [Purged(1)]
    assert "failed on Purged" in records[0].getMessage()

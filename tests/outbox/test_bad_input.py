"""Bad input gets one clear error, and nothing is written: the caller's transaction stays usable."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit import delivering, happened, rows, stored
from relaybox import ConfigError, Event, InvalidEvent, Outbox, RelayboxError, Settings
from relaybox.errors import ConnectionLost, DuplicateEvent, PayloadTooLarge, SchemaMissing, StoreError

LONE = "lone \ud800 surrogate"
NUL = "n\x00l"


class Odd:
    pass


EVENTS: list[tuple[str, Any, type[Exception], str]] = [
    ("payload too large", lambda: Event("T", "x" * 1_048_577), PayloadTooLarge, "the limit is 1,048,576"),
    ("bytes too large", lambda: Event("T", payload_bytes=b"x" * 1_048_577), PayloadTooLarge, "limit"),
    ("NUL in type", lambda: Event(NUL, None), InvalidEvent, "type contains a NUL"),
    ("NUL in key", lambda: Event("T", None, key=NUL), InvalidEvent, "key contains a NUL"),
    ("NUL in tenant", lambda: Event("T", None, tenant=NUL), InvalidEvent, "tenant contains a NUL"),
    ("NUL in aggregate", lambda: Event("T", None, aggregate_type=NUL), InvalidEvent, "NUL"),
    ("NUL in id", lambda: Event("T", None, id=NUL), InvalidEvent, "NUL"),
    ("NUL in header", lambda: Event("T", None, headers={"h": NUL}), InvalidEvent, "NUL"),
    ("surrogate in key", lambda: Event("T", None, key=LONE), InvalidEvent, "lone surrogate"),
    ("surrogate in header", lambda: Event("T", None, headers={"h": LONE}), InvalidEvent, "lone surrogate"),
    ("surrogate in payload", lambda: Event("T", {"a": LONE}), InvalidEvent, "surrogate"),
    ("surrogate in JSON text", lambda: Event("T", payload_json=f'"{LONE}"'), InvalidEvent, "surrogate"),
    ("type not text", lambda: Event(7, None), InvalidEvent, "got int"),  # type: ignore[arg-type]
    ("empty type", lambda: Event("", None), InvalidEvent, "non-empty"),
    ("key not text", lambda: Event("T", None, key=7), InvalidEvent, "got int"),  # type: ignore[arg-type]
    ("long key", lambda: Event("T", None, key="k" * 129), InvalidEvent, "129 characters long, the limit is 128"),
    ("long type", lambda: Event("t" * 129, None), InvalidEvent, "limit is 128"),
    ("long id", lambda: Event("T", None, id="i" * 37), InvalidEvent, "limit is 36"),
    ("long tenant", lambda: Event("T", None, tenant="t" * 65), InvalidEvent, "limit is 64"),
    ("header not text", lambda: Event("T", None, headers={"h": 7}), InvalidEvent, "text to text"),  # type: ignore[dict-item]
    ("headers not a mapping", lambda: Event("T", None, headers=[1]), InvalidEvent, "mapping"),  # type: ignore[arg-type]
    ("header line break", lambda: Event("T", None, headers={"h": "a\nb"}), InvalidEvent, "line break"),
    ("too many headers", lambda: Event("T", None, headers={f"h{n}": "" for n in range(65)}), InvalidEvent, "64"),
    ("headers too large", lambda: Event("T", None, headers={"h": "x" * 9_000}), InvalidEvent, "8,192"),
    ("naive time", lambda: Event("T", None, deliver_at=datetime(2030, 1, 1)), InvalidEvent, "time zone"),
    ("time not a time", lambda: Event("T", None, occurred_at="now"), InvalidEvent, "datetime"),  # type: ignore[arg-type]
    ("unencodable", lambda: Event("T", Odd()), InvalidEvent, "Odd"),
    ("not a number", lambda: Event("T", float("nan")), InvalidEvent, "(?i)nan|JSON"),
    ("no payload", lambda: Event("T"), InvalidEvent, "exactly one"),
    ("two payloads", lambda: Event("T", 1, payload_json="1"), InvalidEvent, "exactly one"),
    ("JSON text not text", lambda: Event("T", payload_json=b"1"), InvalidEvent, "JSON text"),  # type: ignore[arg-type]
    ("bytes not bytes", lambda: Event("T", payload_bytes="1"), InvalidEvent, "bytes"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "kind", "text"), [e[1:] for e in EVENTS], ids=[e[0] for e in EVENTS])
def test_events(make: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        make()
    assert len(str(caught.value)) < 300, "one line, without the payload in it"


@pytest.mark.parametrize("bad", ["text", None, 7, {"type": "T"}, object()])
def test_not_an_event(url: str, bad: Any) -> None:
    box = Outbox(url)
    with box.transaction() as tx:
        with pytest.raises(InvalidEvent, match="expected an Event"):
            box.write(tx, bad)
        with pytest.raises(InvalidEvent, match="expected an Event"):
            box.write_all(tx, [happened(1), bad])
        assert box.write_all(tx, []) == []
        box.write(tx, happened(2))
    box.close()
    assert stored(url) == 1


def test_the_extremes_are_stored_as_they_are(url: str) -> None:
    """What is allowed goes in and comes out unchanged, up to the limits, on every engine."""
    box = Outbox(url)
    event = Event(
        "t" * 128,
        payload_bytes=bytes(range(256)) * 4096,
        key="\U0001f600" * 128,
        tenant="é" * 64,
        aggregate_type="Ä" * 64,
        headers={"h": "\U0001f9e8" * 2_000},
        deliver_at=datetime(2200, 1, 1, tzinfo=UTC),
        occurred_at=datetime(1971, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
        content_type="x" * 128,
    )
    with box.transaction() as tx:
        box.write(tx, event)
        box.write_all(tx, [Event("T", {"text": "\u0000 is fine in a payload"}), Event("T", None, key="K")])
    box.close()
    assert stored(url) == 3
    assert rows(url, "SELECT length(payload) FROM outbox_event ORDER BY seq")[0][0] == 1_048_576


def test_a_duplicate_id_is_refused_by_name(url: str) -> None:
    box = Outbox(url)
    first = happened(1)
    with box.transaction() as tx:
        box.write(tx, first)
    with pytest.raises(DuplicateEvent, match="stored already"), box.transaction() as tx:
        box.write(tx, Event("Happened", None, id=first.id))
    with pytest.raises(DuplicateEvent), box.transaction() as tx:
        box.write_all(tx, [happened(2), Event("Happened", None, id=first.id)])
    box.close()
    assert stored(url) == 1


def test_schema_not_migrated(bare_url: str) -> None:
    box = Outbox(bare_url)
    with pytest.raises(SchemaMissing, match="migrate"), box.transaction() as tx:
        box.write(tx, happened())
    with pytest.raises(SchemaMissing, match="migrate"):
        box.verify()
    with pytest.raises(SchemaMissing):
        box.status()
    box.close()


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("oracle://host/db", "unknown database URL scheme 'oracle'"),
        ("host/db", "unknown database URL scheme"),
        ("", "unknown database URL scheme"),
        ("sqlite://relative.db", "sqlite:///relative.db"),
        ("mysql:///db", "host"),
        (None, "cannot open connections"),
        (7, "cannot open connections"),
        (object(), "cannot open connections"),
    ],
)
def test_unknown_urls(target: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Outbox(target)


def test_a_password_is_never_shown() -> None:
    for url in (
        "oracle://me:s3cret@host/db",
        "mysql://me:s3cret@127.0.0.1:1/db",
        "postgresql://me:s3cret@127.0.0.1:1/db",
    ):
        with pytest.raises(RelayboxError) as caught:
            Outbox(url).verify()
        assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value}"


@pytest.mark.parametrize("name", ["", "1st", "a-b", 'a"b', "a" * 49, "a b", "a;drop table x", "ä", None.__class__])
def test_bad_table_names(pg: str, name: Any) -> None:
    if name == "":
        pytest.skip("empty means the default")
    with pytest.raises(ConfigError, match="expected table name"):
        Outbox(pg, table=name)
    with pytest.raises(ConfigError, match="expected schema name"):
        Outbox(pg, schema=name)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delivery.workers": 0}, r"delivery\.workers"),
        ({"delivery.workers": True}, r"delivery\.workers"),
        ({"delivery.workers": "4"}, r"delivery\.workers"),
        ({"delivery.batch": -1}, r"delivery\.batch"),
        ({"delivery.hot_queue": 0}, r"delivery\.hot_queue"),
        ({"delivery.retry.attempts": 0}, r"retry\.attempts"),
        ({"delivery.lease": timedelta(0)}, r"delivery\.lease"),
        ({"delivery.lease": "soon"}, r"delivery\.lease"),
        ({"delivery.lease": None}, r"delivery\.lease"),
        ({"delivery.lease": timedelta(seconds=1), "delivery.instance_ttl": 1}, r"twice delivery\.instance_ttl"),
        ({"delivery.retry.base": timedelta(seconds=9), "delivery.retry.max": 1}, r"retry\.max"),
        ({"delivery.retry": 5}, r"delivery\.retry"),
        ({"delivery": 5}, "expected delivery to be DeliverySettings, got 5"),
        ({"order.on_exhausted": "explode"}, "block, park or skip"),
        ({"delivery.owner": ""}, r"delivery\.owner"),
        ({"delivery.owner": "o" * 129}, r"delivery\.owner"),
        ({"order.shards": 2_000}, r"order\.shards"),
    ],
)
def test_bad_settings(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Settings().replaced(options)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"RELAYBOX_DELIVERY_WORKERS": "many"}, r"delivery\.workers"),
        ({"RELAYBOX_DELIVERY_LEASE": "soon"}, "lease"),
        ({"RELAYBOX_DELIVERY_NOTIFY": "perhaps"}, "notify"),
        ({"RELAYBOX_NO_SUCH_THING": "1"}, "unknown setting"),
    ],
)
def test_bad_environment(environment: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Settings.load(environment=environment)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda box: box.dead.list(limit=0), "limit"),
        (lambda box: box.purge(done=timedelta(seconds=-1)), "done"),
        (lambda box: box.purge(done=None, dead=timedelta(seconds=-1)), "dead"),
    ],
)
def test_bad_arguments(url: str, call: Any, text: str) -> None:
    box = Outbox(url)
    with pytest.raises(ConfigError, match=text):
        call(box)
    box.close()


def test_a_read_only_database(pg: str) -> None:
    import psycopg

    box = Outbox(pg)
    with psycopg.connect(pg) as connection:
        connection.execute("SET default_transaction_read_only = on")
        connection.commit()
        with pytest.raises(StoreError, match="read-only"):
            box.write(connection, happened())
    box.close()
    assert stored(pg) == 0


def test_a_sqlite_file_in_no_folder() -> None:
    with pytest.raises(ConnectionLost, match="folder"):
        Outbox("sqlite:////nowhere/at/all.db").migrate()


def test_a_sqlite_memory_database_cannot_deliver() -> None:
    from kit import Probe, recording

    with pytest.raises(ConfigError, match="in-memory"):
        delivering(Outbox, "sqlite://:memory:", recording(Probe()))

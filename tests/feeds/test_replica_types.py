"""Every value of a feed arrives exactly, in each database, or is refused; none is rounded or cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kit import make_database, make_postgres, one, rows
from relaybox import Feed, Outbox, Replica
from relaybox.errors import FeedError
from relaybox.store.replica.rows import array, decode, encode

COLUMNS = {
    "id": "bigint",
    "kind": "text",
    "small": "smallint",
    "yes": "boolean",
    "money": "numeric",
    "price": "numeric(12,2)",
    "ratio": "double precision",
    "single": "real",
    "label": "varchar(40)",
    "uid": "uuid",
    "raw": "bytea",
    "day": "date",
    "moment": "timestamptz",
    "local": "timestamp",
    "clock": "time",
    "span": "interval",
    "doc": "jsonb",
    "text_doc": "json",
    "tags": "text[]",
    "grid": "integer[]",
    "period": "int4range",
    "address": "inet",
    "mood": "mood",
    "level": "level",
}
MADE = "CREATE TYPE mood AS ENUM ('sad', 'fine'); CREATE DOMAIN level AS integer CHECK (VALUE >= 0);" + (
    "CREATE TABLE item (" + ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()) + ", PRIMARY KEY (id, kind))"
)
ROWS = (
    (
        *("9223372036854775807", "'plain'", "-32768", "true", "12345678901234567890.123456789", "99.90"),
        *("0.1", "0.1", "'a label'", "'5f3c1e9a-0000-4000-8000-00000000ffff'", r"'\x00ff5c27'", "'2024-02-29'"),
        *("'2024-02-29 12:34:56.789012+02'", "'2024-02-29 12:34:56.1'", "'23:59:59.999999'", "'1 mon 2 days 3:04:05'"),
        *("""'{"a": 1.10, "b": [null, "x"], "big": 12345678901234567890.5}'""", """'{"b":1, "a" : 2,  "b":3}'"""),
        *("""ARRAY['x,y', 'q"z', NULL, '{', E'back\\\\slash', '']""", "'{{1,2},{3,4}}'", "'[1,5)'", "'10.0.0.1/24'"),
        *("'fine'", "3"),
    ),
    (
        *("-1", "'a '", "0", "false", "-0.00", "0", "-1e300", "3.4e38", "''", "NULL", "''", "'0001-01-01'"),
        *("'1000-01-01 00:00:00+00'", "NULL", "NULL", "NULL", "'null'", "'null'", "'{}'", "NULL", "'empty'", "NULL"),
        *("NULL", "NULL"),
    ),
    (
        *("-1", "'a'", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", r"E'\\u0000 \n\t \\ '' \" ü 🦊 %s :x'"),
        *("NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL"),
        *("NULL", "NULL"),
    ),
    (
        *("-1", "'A'", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL"),
        *("NULL", "NULL", """'"a string"'""", r"""'"nul \u0000 half \ud800"'""", "NULL", "NULL", "NULL", "NULL"),
        *("NULL", "NULL"),
    ),
)
FEED = Feed("items", "SELECT * FROM item", key=("id", "kind"), sources={"item": ("id", "kind")})


@pytest.fixture
def source() -> Iterator[Outbox]:
    url = make_postgres()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(MADE)  # type: ignore[call-overload]
    with Outbox(url) as box:
        yield box


def insert(source: Outbox) -> None:
    for row in ROWS:
        rows(str(source._target), f"INSERT INTO item VALUES ({', '.join(row)})")


@pytest.fixture(params=["postgres", "mysql", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_database(request.param, tmp_path, migrated=False)


def found(url: str, table: str, kind: str) -> dict[tuple[int, str], dict[str, Any]]:
    digits = {"raw": "CASE WHEN raw IS NOT NULL THEN lower(hex(raw)) END"}
    shown = ", ".join(f"{name}::text" if kind == "postgres" else digits.get(name, name) for name in COLUMNS)
    answer = rows(url, f"SELECT {shown} FROM {table}")
    return {(int(row[0]), row[1]): dict(zip(COLUMNS, row, strict=True)) for row in answer}


@pytest.mark.parametrize("by", ["copy", "inline", "chunks"])
def test_every_type(source: Outbox, target: str, by: str) -> None:
    feed = FEED if by != "chunks" else Feed("items", FEED.query, key=FEED.key, sources=FEED.sources, inline_rows=0)
    kind = next(name for name in ("postgres", "mysql", "sqlite") if target.startswith(name))
    source.feeds.create(feed)
    with Replica(target, "items", feed="items", source=source) as replica:
        replica.migrate()
        if by != "copy":
            replica.follow().once()
        insert(source)
        source.feeds.refresh(None, "items")
        replica.follow().once()
        there = found(target, "items", kind)
        assert set(there) == {(9223372036854775807, "plain"), (-1, "a "), (-1, "a"), (-1, "A")}
        if kind == "postgres":
            here = found(str(source._target), "feed_items", kind)
            for row in here.values():  # the spaces of the type json are not kept
                row["text_doc"] = row["text_doc"] and encode(decode(row["text_doc"]))
            assert there == here
        else:
            compare(there, kind)
        rows(str(source._target), "UPDATE item SET small = 7, raw = '\\x01' WHERE kind = 'a'")
        rows(str(source._target), "DELETE FROM item WHERE kind = 'A'")
        source.feeds.refresh(None, "items")
        replica.follow().once()
        there = found(target, "items", kind)
        assert set(there) == {(9223372036854775807, "plain"), (-1, "a "), (-1, "a")}
        assert str(there[-1, "a"]["small"]) == "7"


def compare(there: dict[tuple[int, str], dict[str, Any]], kind: str) -> None:
    first = there[9223372036854775807, "plain"]
    texts = {name: str(value) for name, value in first.items()}
    time = "2024-02-29 10:34:56.789012" if kind == "mysql" else "2024-02-29T10:34:56.789012+00:00"
    assert texts["small"] == "-32768"
    assert first["yes"] == 1
    assert texts["money"].rstrip("0") == "12345678901234567890.123456789"
    assert texts["price"] == "99.90"
    assert (first["ratio"], first["single"]) == (0.1, 0.1)
    assert texts["uid"] == "5f3c1e9a-0000-4000-8000-00000000ffff"
    assert texts["raw"] == "00ff5c27"
    assert texts["day"] == "2024-02-29"
    assert texts["moment"] == time
    assert texts["clock"] == "23:59:59.999999"
    assert texts["span"] == "P1M2DT3H4M5S"
    assert encode(decode(texts["doc"])) == '{"a": 1.10, "b": [null, "x"], "big": 12345678901234567890.5}'
    assert encode(decode(texts["text_doc"])) == '{"b": 1, "a": 2, "b": 3}'
    assert json.loads(texts["tags"]) == ["x,y", 'q"z', None, "{", "back\\slash", ""]
    assert json.loads(texts["grid"]) == [[1, 2], [3, 4]]
    assert (texts["period"], texts["address"], texts["mood"], texts["level"]) == ("[1,5)", "10.0.0.1/24", "fine", "3")
    second = there[-1, "a "]
    assert (second["doc"], second["text_doc"], second["tags"], second["label"]) == ("null", "null", "[]", "")
    assert (second["yes"], second["raw"], second["uid"], second["ratio"]) == (0, "", None, -1e300)
    third, fourth = there[-1, "a"], there[-1, "A"]
    assert third["label"] == "\\u0000 \n\t \\ ' \" ü 🦊 %s :x"
    assert (third["doc"], third["raw"]) == (None, None)
    assert fourth["doc"] == '"a string"'
    assert fourth["text_doc"] == r'"nul \u0000 half \ud800"'


STRANGE = {  # on PostgreSQL, and how each other database has it: None where it is refused
    "char(4)": ("'ab'", "ab  ", "ab  "),
    "char(3)[]": ("ARRAY['abc', 'd']::char(3)[]", '["abc", "d  "]', '["abc", "d  "]'),
    "short": ("'abc'", "abc  ", "abc  "),
    "bit(4)": ("B'1010'", "1010", "1010"),
    "bit varying(8)": ("B'10101'", "10101", "10101"),
    "numeric": ("'NaN'", None, "NaN"),
    "numeric(10,2)": ("'NaN'", None, "NaN"),
    "numeric(5,-2)": ("1234500", "1234500", "1234500"),
    "double precision": ("'-Infinity'", None, "-Infinity"),
    "real": ("'NaN'", None, "NaN"),
    "date": ("'0044-03-15 BC'", None, "0044-03-15 BC"),
    "timestamp": ("'infinity'", None, "infinity"),
    "timestamptz": ("'12345-01-01 00:00:00+00'", None, "12345-01-01T00:00:00+00:00"),
    "timestamp(3)": ("'2024-01-01 00:00:00.123'", "2024-01-01 00:00:00.123000", "2024-01-01T00:00:00.123"),
    "time": ("'24:00:00'", "1 day, 0:00:00", "24:00:00"),
    "interval day to second(3)": ("'-1 day 02:03:04.567'", "P-1DT2H3M4.567S", "P-1DT2H3M4.567S"),
}


@pytest.mark.parametrize("by", ["copy", "delta"])
def test_what_is_rarely_seen(source: Outbox, target: str, by: str) -> None:
    """Exact, or refused by the name of the column before anything is written."""
    url, of = str(source._target), 0 if target.startswith("postgres") else 1 if target.startswith("mysql") else 2
    rows(url, "CREATE DOMAIN short AS char(5)")
    for number, (kind, (value, *others)) in enumerate(STRANGE.items()):
        name = f"strange{number}"
        rows(url, f"CREATE TABLE {name} (id integer PRIMARY KEY, v {kind})")
        source.feeds.create(Feed(f"f{number}", f"SELECT id, v FROM {name}", key="id", mode="full"))
        group = source.topics.group(f"f{number}", "all")
        group.create()
        with Replica(target, f"f{number}", feed=f"f{number}", source=source) as replica:
            replica.migrate()
            if by == "delta":
                source.feeds.refresh(None, f"f{number}")
                replica.follow().once()
            rows(url, f"INSERT INTO {name} VALUES (1, {value}), (2, NULL)")
            source.feeds.refresh(None, f"f{number}")
            expected = one(url, f"SELECT v::text FROM {name} WHERE id = 1") if of == 0 else others[of - 1]
            if expected is None:
                with group.consumer() as consumer, consumer.poll() as batch:
                    with pytest.raises(FeedError, match="column 'v'"):
                        replica.apply(None, batch[-1])
                assert rows(target, f"SELECT * FROM f{number}") == [], kind
                continue
            replica.follow().once()
            shown = "v::text" if of == 0 else "v"
            found = rows(target, f"SELECT id, {shown} FROM f{number} ORDER BY 1")
            assert [(id, value if value is None else str(value)) for id, value in found] == [(1, expected), (2, None)]


@pytest.mark.parametrize(
    "text", ['{"a": 1.10, "a": [1e400, -0.0, null]}', "[]", '"\\ud800"', "12345678901234567890.10"]
)
def test_json_comes_out_as_it_went_in(text: str) -> None:
    assert encode(decode(text)) == text


def test_arrays_as_postgres_reads_them() -> None:
    assert array(decode('[1, null, "a\\"b", [true], {"x": 1}]')) == '{"1",NULL,"a\\"b",{"true"},"{\\"x\\": 1}"}'


@pytest.mark.parametrize(
    ("dialect", "column", "value"),
    [
        ("mysql", "v decimal(10,2)", "1.005"),
        ("mysql", "v integer", "1.5"),
        ("mysql", "v double", "12345678901234567.5"),
        ("mysql", "v decimal(10,2)", "'NaN'::numeric"),
        ("mysql", "v datetime(3)", "'2024-01-01 00:00:00.0001'::timestamp"),
        ("mysql", "v datetime(6)", "'infinity'::timestamp"),
        ("mysql", "v date", "'2024-01-01 12:00:00'::timestamp"),
        ("mysql", "v double", "'NaN'::float8"),
        ("sqlite", "v integer", "1.5"),
        ("sqlite", "v real", "0.12345678901234567890"),
        ("postgres", "v numeric(10,2)", "1.005"),
        ("postgres", "v double precision", "12345678901234567.5"),
        ("postgres", "v numeric(5,-2)", "1234567"),
        ("postgres", "v timestamp(3)", "'2024-01-01 00:00:00.0001'::timestamp"),
        ("postgres", "v date", "'2024-01-01 12:00:00'::timestamp"),
    ],
)
def test_what_a_column_cannot_hold_is_refused(
    source: Outbox, tmp_path: Path, dialect: str, column: str, value: str
) -> None:
    target = make_database(dialect, tmp_path, migrated=False)
    rows(target, f"CREATE TABLE tight (id integer PRIMARY KEY, {column})")
    source.feeds.create(Feed("tight", f"SELECT 1 AS id, {value} AS v", key="id", mode="full"))
    source.feeds.refresh(None, "tight")
    with Replica(target, "tight", feed="tight", source=source) as replica:
        replica.migrate()
        group = source.topics.group("tight", "all")
        group.create()
        source.feeds.snapshot(None, "tight")
        with group.consumer() as consumer, consumer.poll() as batch:
            with pytest.raises(FeedError, match="column 'v'") as refused:
                replica.apply(None, batch[0])
        assert refused.value.reason == "value"
        assert value.split("'")[-2 if "'" in value else 0] not in str(refused.value)
        assert rows(target, "SELECT * FROM tight") == []

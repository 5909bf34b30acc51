"""A primary and its standby behind one address."""

from __future__ import annotations

from typing import Any

import pytest

from relaybox.testing.servers import PostgresPair, ServerUnavailable


def numbers(url: str) -> list[int]:
    with connect(url) as database:
        return [row[0] for row in database.execute("SELECT n FROM numbers ORDER BY n")]


def connect(url: str) -> Any:
    psycopg = pytest.importorskip("psycopg")
    return psycopg.connect(url, autocommit=True, connect_timeout=5)


def test_a_fail_over_keeps_the_address_and_loses_what_came_after_the_cut() -> None:
    try:
        pair = PostgresPair.from_wheel()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    with pair:
        url = pair.create_database()
        with connect(url) as database:
            database.execute("CREATE TABLE numbers (n int)")
            database.execute("INSERT INTO numbers VALUES (1)")
            pair.cut()
            database.execute("INSERT INTO numbers VALUES (2)")
            pair.fail_over()
        assert numbers(url) == [1]
        with connect(url) as database:
            database.execute("INSERT INTO numbers VALUES (3)")
        pair.follow()  # and a second time
        with connect(url) as database:
            database.execute("INSERT INTO numbers VALUES (4)")
            pair.cut()
            database.execute("INSERT INTO numbers VALUES (5)")
        pair.fail_over()
        assert numbers(url) == [1, 3, 4]

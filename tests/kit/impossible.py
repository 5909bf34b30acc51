"""To put rows into tables that no writer of ours makes: past relaybox, and past constraints."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from .databases import rows


def put(engine: str, url: str, texts: Sequence[str]) -> None:
    """On a connection that lets everything pass that the tables do."""
    if engine == "postgres":
        rows(url, ";".join(texts))
    elif engine == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            for text in texts:
                connection.execute(text)
            connection.commit()
    else:
        with closing(_lax(url)) as raw, raw.cursor() as cursor:
            for text in texts:
                cursor.execute(text)
            raw.commit()


def _lax(url: str) -> Any:
    import pymysql

    from relaybox.drivers.mysql_session import options

    raw = pymysql.connect(**options(url))
    with raw.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
    return raw


def bare_sqlite(url: str, columns: str) -> None:
    """Takes the limits from all tables, and NOT NULL from these columns (a pattern)."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for name, text in connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall():
            bare = re.sub(
                r",\s*(?:--[^\n]*\s*)*CONSTRAINT \S+_limits CHECK \(.*\)\s*\)$", ")", text or "", flags=re.DOTALL
            )
            bare = re.sub(rf"({columns})(\s+\S+\s+)NOT NULL", r"\1\2", bare)
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (bare, name))
        connection.commit()

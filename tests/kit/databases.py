"""Databases for tests: fresh and migrated ones, copied from a template where the engine can, and SQL past relaybox."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from relaybox import Outbox
from relaybox.testing.servers import PostgresServer, require


@cache
def _template(kind: str) -> str:
    url = require(kind, durable=False).create_database()
    box = Outbox(url)
    box.migrate()
    box.close()
    rows(url, "CREATE TABLE business (n bigint)")
    return url


def make_postgres(kind: str = "postgres-wheel", *, migrated: bool = True) -> str:
    server = require(kind, durable=False)
    return server.create_database(_template(kind) if migrated else None)


def make_database(engine: str, folder: Path, *, migrated: bool = True) -> str:
    if engine == "postgres":
        return make_postgres(migrated=migrated)
    url = sqlite_url(folder) if engine == "sqlite" else require("mariadb", durable=False).create_database()
    if migrated:
        box = Outbox(url)
        box.migrate()
        with box.transaction() as tx:
            tx.connection.cursor().execute("CREATE TABLE business (n bigint)")
        box.close()
    return url


def need_mariadb(reason: str) -> None:
    """For what its sibling has not: in CI the server is MariaDB, and `make engines` tries MySQL too."""
    if not require("mariadb", durable=False).is_mariadb:
        pytest.skip(f"MariaDB only: {reason}")


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'flow.db'}"


def with_driver(url: str, driver: str) -> str:
    scheme, rest = url.split("://", 1)
    return f"{scheme.partition('+')[0]}+{driver}://{rest}"


def rows(url: str, text: str) -> list[tuple[Any, ...]]:
    """Raw SQL on a connection of the test's own, past relaybox."""
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            found = connection.execute(text).fetchall()
        connection.close()
        return found
    if url.startswith("mysql"):
        import pymysql

        from relaybox.drivers.mysql_session import options

        raw = pymysql.connect(**options(url))
        try:
            with raw.cursor() as cursor:
                cursor.execute(text)
                return list(cursor.fetchall())
        finally:
            raw.close()
    import psycopg

    # Whatever the server's default is: what the test does by itself must not fail for a conflict with relaybox.
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_isolation=read\\ committed") as other:
        cursor = other.execute(text)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def one(url: str, text: str) -> Any:
    return rows(url, text)[0][0]


def restored(url: str, server: PostgresServer) -> str:
    """Through pg_dump and psql, as one would."""
    dump, psql = shutil.which("pg_dump"), shutil.which("psql")
    if dump is None or psql is None:
        missing = "pg_dump and psql are not installed; they come with the postgresql-client package"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    text = subprocess.run([dump, "--no-owner", url], capture_output=True, check=True).stdout
    target = server.create_database()
    subprocess.run([psql, "-q", "-v", "ON_ERROR_STOP=1", target], input=text, capture_output=True, check=True)
    return target

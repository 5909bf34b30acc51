"""The one PostgreSQL of a run: private by default, fresh databases on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

#: everything else stays at its default: fsync, synchronous_commit and full_page_writes are on
SERVER_SETTINGS = {"shared_buffers": "1GB"}
RECORDED_SETTINGS = (
    "server_version",
    "shared_buffers",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "autovacuum",
    "max_wal_size",
)


@dataclass(frozen=True)
class FreshDatabase:
    """One database made for one measurement."""

    url: str

    def checkpoint(self) -> None:
        self._run("CHECKPOINT")

    def analyze(self) -> None:
        self._run("ANALYZE")

    def wal_position(self) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def _run(self, command: LiteralString) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL(command))


@dataclass(frozen=True)
class Server:
    """A running server, reached by the URL of its maintenance database."""

    admin_url: str

    def facts(self) -> dict[str, str]:
        """The settings that decide the figures."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)",
                (list(RECORDED_SETTINGS),),
            ).fetchall()
        return dict(sorted(rows))

    @contextmanager
    def fresh_database(self, name: str) -> Iterator[FreshDatabase]:
        """A new database, dropped when the measurement ends."""
        self._admin(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._admin(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield FreshDatabase(urlunsplit(urlsplit(self.admin_url)._replace(path=f"/{name}")))
        finally:
            self._admin(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _admin(self, command: sql.Composed) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(command)


@contextmanager
def server(url: str | None, *, own: bool = False) -> Iterator[Server]:
    """The server at `url`, or a private one for the length of the run: from the wheel, or the machine's own version."""
    if url is not None:
        yield Server(url)
        return
    from relaybox.testing.servers import PostgresServer

    private = (PostgresServer.from_system if own else PostgresServer.from_wheel)(settings=SERVER_SETTINGS)
    private.start()
    try:
        yield Server(private.url("postgres"))
    finally:
        private.stop()

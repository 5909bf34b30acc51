"""Servers whose logs can be read: PostgreSQL with logical decoding, MariaDB with a binary log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from relaybox.testing.servers import MariaDBServer, PostgresServer, require


class LoggingMariaDB(MariaDBServer):
    def _command(self) -> Sequence[str | Path]:
        return [*super()._command(), "--log-bin=binlog", "--binlog-format=ROW", "--server-id=1"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    require("postgres-system", durable=False)  # skips where there is none, fails under CI=true
    settings = {"wal_level": "logical", "max_slot_wal_keep_size": "64MB", "max_replication_slots": "50"}
    with PostgresServer.from_system(durable=False, settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    require("mariadb", durable=False)
    with LoggingMariaDB.from_system(durable=False) as server:
        yield server

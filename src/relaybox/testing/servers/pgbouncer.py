"""A private PgBouncer in front of one of our PostgreSQL servers."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from .postgres import USER, PostgresServer, connect, database_name
from .process import (
    LOOPBACK,
    PrivateServer,
    ServerFailed,
    program,
    unprivileged_account,
)

GET_SERVER = "apt-get install pgbouncer (or your system's PgBouncer package)"

PoolMode = Literal["session", "transaction", "statement"]


class PgBouncer(PrivateServer):
    """Any database of `postgres` under the same name, through a small pool.

    The pool is small on purpose: state a client wrongly keeps on its session shows up as soon as two clients
    share a server connection. PostgreSQL is the caller's: it has to run, and is not stopped here.
    """

    kind = "pgbouncer"

    def __init__(self, postgres: PostgresServer, pool_mode: PoolMode = "transaction", pool_size: int = 2) -> None:
        super().__init__(unprivileged_account("postgres"))
        self._program = program("PgBouncer", GET_SERVER, "pgbouncer")
        self.postgres = postgres
        self.pool_mode = pool_mode
        self.pool_size = pool_size

    def url(self, database: str = "postgres") -> str:
        """`database` may be a name or a URL from `PostgresServer.create_database`."""
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{quote(database_name(database), safe='')}"

    def stop(self) -> None:
        """Drop every client at once: SIGTERM would wait for them since PgBouncer 1.23."""
        if not self._end(signal.SIGQUIT):
            raise ServerFailed(f"pgbouncer ignored SIGQUIT and was killed\n{self.log_tail()}")

    def restart(self) -> None:
        """Same port; every client is cut off."""
        self.stop()
        self.start()

    def _prepare(self) -> None:
        if not self.postgres.running:
            raise ServerFailed("start PostgreSQL before PgBouncer: its port goes into the configuration")

    def _command(self) -> Sequence[str | Path]:
        # auth_type=any needs no user list but wants the server-side user named in the database line.
        lines = [
            "[databases]",
            f"* = host={LOOPBACK} port={self.postgres.port} user={USER}",
            "[pgbouncer]",
            f"listen_addr = {LOOPBACK}",
            f"listen_port = {self.port}",
            f"unix_socket_dir = {self.folder}",
            f"pidfile = {self.folder / 'pgbouncer.pid'}",
            "auth_type = any",
            f"pool_mode = {self.pool_mode}",
            f"default_pool_size = {self.pool_size}",
            "max_client_conn = 500",
            "ignore_startup_parameters = extra_float_digits",
            "server_login_retry = 1",
        ]
        return [self._program, self._write("pgbouncer.ini", "\n".join(lines) + "\n")]

    def _answering_folder(self) -> str:
        # The console speaks only the simple protocol; psycopg uses it for a statement without parameters.
        with connect(self.url("pgbouncer")) as console:
            settings = {row[0]: row[1] for row in console.execute("SHOW CONFIG").fetchall()}
        return str(settings["unix_socket_dir"])

"""A PostgreSQL primary and an asynchronous standby behind one address: fail-overs that lose the tail.

with PostgresPair.from_wheel() as pair:
    url = pair.create_database()
    pair.cut()          # what is committed from here on is the tail
    pair.fail_over()    # the primary is gone, the standby answers under the same URL, without the tail
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Self

from .gate import TcpGate
from .postgres import PostgresServer, connect, database_name
from .process import START_SECONDS, ServerFailed


class PostgresStandby(PostgresServer):
    """Streams from `primary`, which must be running and does not wait for it."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary.origin)
        self._primary = primary

    def _prepare(self) -> None:
        self._copy_unreachable_binaries()
        data = self.folder / "data"
        follow = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        self._run([self._bindir / "pg_basebackup", "-D", data, *follow, "-d", self._primary.url()])
        with (data / "postgresql.conf").open("a") as conf:
            conf.write(f"unix_socket_directories = '{self.folder}'\n")

    def catch_up(self) -> None:
        """Wait until it has applied all that the primary has committed."""
        with connect(self._primary.url()) as primary, connect(self.url()) as here:
            # The next record after a commit that waited for no disk may be long in coming: write it now.
            primary.execute("SELECT pg_switch_wal()")
            (end,) = primary.execute("SELECT pg_current_wal_lsn()").fetchone()
            self._wait_for(here, f"pg_last_wal_replay_lsn() >= '{end}'")

    def cut(self) -> None:
        """Receive nothing more. What the primary commits from here on is lost with it."""
        with connect(self.url()) as here:
            here.execute("ALTER SYSTEM SET primary_conninfo = ''")
            here.execute("SELECT pg_reload_conf()")
            self._wait_for(here, "NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)")

    def promote(self) -> None:
        """From here on it is a primary, on a timeline of its own."""
        with connect(self.url()) as here:
            if not here.execute("SELECT pg_promote(true, 60)").fetchone()[0]:
                raise ServerFailed(f"the standby was not promoted within 60 s\n{self.log_tail()}")

    def _wait_for(self, here: Any, condition: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not here.execute(f"SELECT {condition}").fetchone()[0]:
            if time.monotonic() > deadline:
                raise ServerFailed(f"not within {START_SECONDS:.0f} s: {condition}\n{self.log_tail()}")
            time.sleep(0.01)


class PostgresPair:
    """Both servers and the gate before the one that is the primary. `url` stays the same over a fail-over."""

    def __init__(self, primary: PostgresServer) -> None:
        self.primary = primary
        self.standby: PostgresStandby | None = None
        self._servers: list[PostgresServer] = [primary]

    @classmethod
    def from_wheel(cls, *, settings: Mapping[str, str] | None = None) -> Self:
        return cls(PostgresServer.from_wheel(settings=settings))

    def start(self) -> Self:
        self.primary.start()
        self.gate = TcpGate(self.primary.port)
        return self

    def url(self, database: str = "postgres") -> str:
        return self.gate.through(self.primary.url(database))

    def create_database(self, template: str | None = None) -> str:
        return self.url(database_name(self.primary.create_database(template)))

    def follow(self) -> PostgresStandby:
        """A new standby of the present primary, up to date with it; the one before is forgotten."""
        self.standby = PostgresStandby(self.primary)
        self._servers.append(self.standby)
        self.standby.start()
        self.standby.catch_up()
        return self.standby

    def cut(self) -> None:
        """The standby has all that is committed up to here and nothing that comes after."""
        standby = self.standby or self.follow()
        standby.catch_up()
        standby.cut()

    def fail_over(self) -> None:
        """The primary dies, the standby takes its place. Sessions are cut. `follow` makes the next standby."""
        standby = self.standby or self.follow()
        self.gate.refuse()
        self.primary.kill()
        standby.promote()
        self.primary, self.standby = standby, None
        self.gate.target_port = standby.port
        self.gate.open()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for server in self._servers:
                stack.callback(server.close)
            if hasattr(self, "gate"):
                stack.callback(self.gate.close)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: Any) -> None:
        self.close()

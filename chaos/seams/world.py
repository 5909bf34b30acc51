"""Where trials run: private servers that can be stopped, set to another time, forgotten in part or filled up, and a
second machine (a network namespace) whose link can be cut."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from relaybox.testing.servers import MariaDBServer, PostgresServer, RedisServer, ServerFailed, TcpGate
from relaybox.testing.servers.process import LOOPBACK

from .nursery import Child, Nursery
from .products import MARIADB, POSTGRES, SQLITE

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
POSTGRES_SETTINGS = {
    "idle_in_transaction_session_timeout": "2500",  # what a stranded connection had locked is free again
    "default_transaction_isolation": "repeatable read",  # what a server's default is must not matter
    "shared_buffers": "32MB",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
}
DISK = "48m"
PATIENCE = 20.0


def root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def namespaces() -> str:
    if root():
        return root()
    if shutil.which("ip") is None:
        return "needs the command ip"
    probe = f"seam-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return "" if made else "needs network namespaces"


def faketime() -> str:
    return "" if FAKETIME else "needs libfaketime"


def mounts() -> str:
    if root():
        return root()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=False)
    return "" if done.returncode == 0 else "needs to mount a file system"


def eventually(what: str, condition: Any, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailed(f"{what}: not within {patience:.0f} s")
        time.sleep(0.02)


def fake_clock(offset: float) -> dict[str, str]:
    """Environment of a process whose clock is so many seconds off. Its monotonic clock is the machine's."""
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{offset:+.0f}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class ClockedPostgres(PostgresServer):
    """A PostgreSQL whose clock a file sets."""

    def _surroundings(self) -> dict[str, Any]:
        found = super()._surroundings()
        found["env"] |= {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock"),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return found

    def _prepare(self) -> None:
        self.set_clock(0)
        super()._prepare()

    def set_clock(self, offset: float) -> None:
        fresh = self._write("clock.new", f"{offset:+.1f}s\n")
        fresh.rename(self.folder / "clock")


class Machine:
    """A network namespace with one link to this machine. Processes in it reach servers by way of gates."""

    def __init__(self, number: int) -> None:
        self.name = f"seam{number}-{os.getpid() % 10_000}"
        self._here, self._there = f"sm{number}h{os.getpid() % 10_000}", f"sm{number}m{os.getpid() % 10_000}"
        self.host, self.guest = f"10.97.{number % 250}.1", f"10.97.{number % 250}.2"
        self._do("netns", "add", self.name)
        try:
            self._do("link", "add", self._here, "type", "veth", "peer", "name", self._there)
            self._do("link", "set", self._there, "netns", self.name)
            self._do("addr", "add", f"{self.host}/30", "dev", self._here)
            self._do("link", "set", self._here, "up")
            self._inside("addr", "add", f"{self.guest}/30", "dev", self._there)
            self._inside("link", "set", self._there, "up")
            self._inside("link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def cut(self, *, both: bool) -> None:
        """Answers no longer arrive; with `both`, questions do not either. Nobody is told: frames go to nobody."""
        nobody = "02:00:00:00:00:99"
        self._do("neigh", "replace", self.guest, "lladdr", nobody, "dev", self._here, "nud", "permanent")
        if both:
            self._inside("neigh", "replace", self.host, "lladdr", nobody, "dev", self._there, "nud", "permanent")

    def mend(self) -> None:
        self._do("neigh", "del", self.guest, "dev", self._here, check=False)
        self._inside("neigh", "del", self.host, "dev", self._there, check=False)

    def command(self, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    def close(self) -> None:
        self._do("link", "del", self._here, check=False)
        self._do("netns", "del", self.name, check=False)

    def _inside(self, *words: str, check: bool = True) -> None:
        self._do("-n", self.name, *words, check=check)

    @staticmethod
    def _do(*words: str, check: bool = True) -> None:
        subprocess.run(["ip", *words], capture_output=True, check=check)


class Disk:
    """A small file system that can be filled."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="relaybox-disk-", dir="/tmp"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0777", "tmpfs", str(self.folder)], check=True)

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 65536):
                pass

    def free(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        for _ in range(50):
            if subprocess.run(["umount", str(self.folder)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)


def _forgetting(server: MariaDBServer) -> MariaDBServer:
    """What a stranded connection had locked is free again."""
    import pymysql

    account = {"user": "relaybox", "password": "relaybox"}
    with closing(pymysql.connect(host=LOOPBACK, port=server.port, autocommit=True, **account)) as admin:
        with admin.cursor() as cursor:
            cursor.execute("SET GLOBAL idle_transaction_timeout = 3")
    return server


class World:
    """The servers of one lane: started when first needed, used by its trials one after the other."""

    def __init__(self, lane: int = 0) -> None:
        self.lane = lane
        self._stack = ExitStack()
        self._postgres: PostgresServer | None = None
        self._clocked: ClockedPostgres | None = None
        self._mariadb: MariaDBServer | None = None
        self._redis: RedisServer | None = None
        self._nursery: Nursery | None = None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def server(self, engine: str, kind: str) -> Any:
        """`kind`: plain, or clocked for one whose clock can be set."""
        if engine == SQLITE:
            return None
        if engine == MARIADB:
            if self._mariadb is None:
                self._mariadb = self._stack.enter_context(MariaDBServer.from_system(durable=False))
            return _forgetting(self._mariadb.start())
        assert engine == POSTGRES
        if kind == "clocked":
            if self._clocked is None:
                made = ClockedPostgres.from_wheel(durable=False, settings=POSTGRES_SETTINGS)
                self._clocked = self._stack.enter_context(made)
            return self._clocked.start()
        if kind == "primary":  # of its own: it does not come back
            return PostgresServer.from_wheel(durable=False, settings=POSTGRES_SETTINGS).start()
        if self._postgres is None:
            made_plain = PostgresServer.from_wheel(durable=False, settings=POSTGRES_SETTINGS)
            self._postgres = self._stack.enter_context(made_plain)
        return self._postgres.start()

    def nursery(self) -> Nursery:
        if self._nursery is None:
            self._nursery = Nursery()
            self._stack.callback(self._nursery.close)
        return self._nursery

    def broker(self) -> RedisServer:
        if self._redis is None:
            self._redis = self._stack.enter_context(RedisServer(durable=False))
        return self._redis.start()

    def gate(self, port: int, host: str = LOOPBACK) -> TcpGate:
        return TcpGate(port, host=host)


def end(process: subprocess.Popen[bytes] | Child, patience: float) -> bool:
    """SIGTERM; False if it had to be killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True

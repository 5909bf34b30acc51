"""Private MariaDB servers, or MySQL ones where MariaDB is not installed."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from .process import (
    LOOPBACK,
    RestartableServer,
    ServerFailed,
    client_library,
    program,
    unprivileged_account,
)

USER = "relaybox"
PASSWORD = "relaybox"  # noqa: S105 - a throw-away server on the loopback address
GET_SERVER = "apt-get install mariadb-server (or your system's MariaDB or MySQL server package)"
GET_DRIVER = "pip install PyMySQL"


class MariaDBServer(RestartableServer):
    """One MariaDB (or MySQL) server on a loopback port; user and password `relaybox`, all rights."""

    kind = "mariadb"

    def __init__(self, server: Path, *, durable: bool = True) -> None:
        super().__init__(unprivileged_account("mysql"))
        self._program = server
        self._durable = durable
        self.in_memory = not durable  # each CREATE TABLE waits for the disk
        self._banner = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout

    @classmethod
    def from_system(cls, *, durable: bool = True) -> Self:
        return cls(program("MariaDB or MySQL", GET_SERVER, "mariadbd", "mysqld"), durable=durable)

    @property
    def is_mariadb(self) -> bool:
        """False for Oracle's MySQL, which differs in initialisation and in some SQL."""
        return "mariadb" in self._banner.lower()

    @property
    def version(self) -> str:
        found = re.search(r"Ver\s+(\d[\d.]*)", self._banner)
        if found is None:
            raise ServerFailed(f"cannot read a version from {self._banner!r}")
        return found.group(1)

    @property
    def _places(self) -> list[str]:
        """Where its messages and plugins lie, which MySQL does not find from everywhere."""
        base = self._program.resolve().parent.parent
        shares = (base / "share" / "mysql", base / "share")
        plugins = (base / "lib" / "mysql" / "plugin", base / "lib" / "plugin")
        found = [f"--lc-messages-dir={each}" for each in shares if (each / "english").is_dir()][:1]
        found += [f"--plugin-dir={each}" for each in plugins if each.is_dir()][:1]
        return ["--no-defaults", f"--basedir={base}", *found, "--secure-file-priv=NULL"]

    def url(self, database: str = "mysql") -> str:
        return f"mysql://{USER}:{PASSWORD}@{LOOPBACK}:{self.port}/{quote(database, safe='')}"

    def create_database(self) -> str:
        """URL of a fresh, uniquely named database."""
        name = f"rb_{uuid.uuid4().hex[:16]}"
        self._execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        name = unquote(urlsplit(url).path.lstrip("/")) if "://" in url else url
        self._execute("DROP DATABASE IF EXISTS `{}`".format(name.replace("`", "``")))

    def kill_connection(self, connection_id: int) -> None:
        """End one client session from the server's side."""
        self._execute(f"KILL CONNECTION {int(connection_id)}")

    def _prepare(self) -> None:
        data = self.folder / "data"
        if self.is_mariadb:
            installer = program("mariadb-install-db", GET_SERVER, "mariadb-install-db", "mysql_install_db")
            options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
            self._run([installer, "--no-defaults", f"--datadir={data}", *options])
        else:
            self._run([self._program, *self._places, "--initialize-insecure", f"--datadir={data}"])
        # Run at every start, hence IF NOT EXISTS: the account has to exist before the first TCP connection.
        account = f"'{USER}'@'{LOOPBACK}'"
        self._write(
            "init.sql",
            f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION;\n",
        )

    def _command(self) -> Sequence[str | Path]:
        command: list[str | Path] = [
            self._program,
            *(["--no-defaults"] if self.is_mariadb else self._places),
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'mysql.sock'}",
            f"--pid-file={self.folder / 'mysql.pid'}",
            f"--tmpdir={self.folder}",
            f"--init-file={self.folder / 'init.sql'}",
            f"--port={self.port}",
            f"--bind-address={LOOPBACK}",
            "--skip-name-resolve",
            "--max-connections=200",
            "--character-set-server=utf8mb4",
        ]
        if not self.is_mariadb:
            command.append("--mysqlx=OFF")  # its second port would clash between instances
        if self._durable:
            command.append("--innodb-flush-log-at-trx-commit=1")
        else:  # still survives the death of the process, only not that of the machine
            command += ["--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=0"]
        return command

    def _answering_folder(self) -> str:
        return str(self._execute("SELECT @@datadir")[0][0])

    def _execute(self, statement: str) -> Sequence[tuple[Any, ...]]:
        connection = client_library("pymysql", GET_DRIVER).connect(
            host=LOOPBACK, port=self.port, user=USER, password=PASSWORD, autocommit=True, connect_timeout=5
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
                return rows
        finally:
            connection.close()

"""Private Redis servers with an append-only file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .process import LOOPBACK, RestartableServer, client_library, program, unprivileged_account

GET_SERVER = "apt-get install redis-server (or your system's Redis package)"
GET_CLIENT = "pip install 'redis>=5'"
DATABASES = 1000


class RedisServer(RestartableServer):
    """One Redis server on a loopback port; what it acknowledged survives a `kill`.

    The append-only file is written before the reply in both profiles; `durable` also waits for the disk.
    """

    kind = "redis"

    def __init__(self, *, durable: bool = True, password: str | None = None, tls: bool = False) -> None:
        super().__init__(unprivileged_account("redis"), tls=tls)
        self._program = program("Redis", GET_SERVER, "redis-server", "valkey-server")
        self._durable = durable
        self._password = password
        self._databases = itertools.count(1)

    @property
    def url(self) -> str:
        """Logical database 0. With TLS it names the authority's file, which redis-py understands."""
        return self._url(0)

    def fresh_url(self) -> str:
        """URL of an emptied logical database of its own; numbers come round again after a thousand."""
        url = self._url(1 + next(self._databases) % (DATABASES - 1))
        with connect(url) as client:
            client.flushdb()
        return url

    def _url(self, database: int) -> str:
        scheme, trust = ("rediss", f"?ssl_ca_certs={self.ca_file}") if self._tls else ("redis", "")
        account = f":{self._password}@" if self._password else ""
        return f"{scheme}://{account}{LOOPBACK}:{self.port}/{database}{trust}"

    def _command(self) -> Sequence[str | Path]:
        lines = [
            f"bind {LOOPBACK}",
            f"dir {self.folder}",
            f"databases {DATABASES}",
            'save ""',
            "appendonly yes",
            # Not "everysec": that may put off the write itself while an fsync is under way.
            f"appendfsync {'always' if self._durable else 'no'}",
        ]
        if self._password:
            lines.append(f"requirepass {self._password}")
        if self._tls:
            certificate = [f"tls-cert-file {self.ca_file}", f"tls-key-file {self.folder / 'key.pem'}"]
            lines += ["port 0", f"tls-port {self.port}", *certificate, "tls-auth-clients no"]
            lines.append(f"tls-ca-cert-file {self.ca_file}")
        else:
            lines.append(f"port {self.port}")
        return [self._program, self._write("redis.conf", "\n".join(lines) + "\n")]

    def _answering_folder(self) -> str:
        with connect(self.url) as client:
            client.ping()  # fails while the file is being read; CONFIG answers even then
            return str(client.config_get("dir")["dir"])


def connect(url: str) -> Any:
    """A client of redis-py."""
    return client_library("redis", GET_CLIENT).Redis.from_url(url, socket_timeout=5, decode_responses=True)

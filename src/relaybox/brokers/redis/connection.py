"""A connection to Redis: what redis-py is told about server, TLS and account, and what its errors say."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from ssl import TLSVersion
from typing import Any

from ...errors import ConfigError, MissingExtra
from ..hosts import Hosts, client_context

try:
    from redis.asyncio.cluster import ClusterNode
    from redis.exceptions import ClusterCrossSlotError, MovedError
except ModuleNotFoundError as error:
    raise MissingExtra("redis", "redis") from error

PORTS = {"redis": 6379, "rediss": 6379}


def settings(
    hosts: Hosts,
    *,
    username: str | None,
    password: str | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    timeout: timedelta,
    cluster: bool = False,
) -> dict[str, Any]:
    """Arguments of a client."""
    if timeout <= timedelta(0):
        raise ConfigError(f"expected timeout to be a positive duration, got {timeout}")
    seconds = timeout.total_seconds()
    return {
        **_place(hosts, cluster),
        **_trust(hosts, ca_file, cert_file, key_file),
        "username": hosts.username if username is None else username,
        "password": hosts.password if password is None else password,
        "socket_timeout": seconds,
        "socket_connect_timeout": min(seconds, 3.0),
        "protocol": 2,
    }


def reason(error: Exception) -> str:
    if isinstance(error, (MovedError, ClusterCrossSlotError)):
        return "it is a node of a Redis Cluster; set cluster=true"
    return f"{type(error).__name__}: {error}"


def _place(hosts: Hosts, cluster: bool) -> dict[str, Any]:
    """Where redis-py connects to."""
    database = hosts.path.strip("/") or "0"
    if not database.isdecimal():
        raise ConfigError(f"expected the number of a database after the slash, got {str(hosts)!r}")
    if cluster:
        if database != "0":
            raise ConfigError(f"a Redis Cluster has no database but 0, got {str(hosts)!r}")
        return {"startup_nodes": [ClusterNode(host, port) for host, port in hosts.addresses]}
    if len(hosts.addresses) > 1:
        raise ConfigError(f"expected one host, or several of a cluster with cluster=true, got {str(hosts)!r}")
    [(host, port)] = hosts.addresses
    return {"host": host, "port": port, "db": int(database)}


def _trust(hosts: Hosts, ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> dict[str, Any]:
    files = {"ssl_ca_certs": ca_file, "ssl_certfile": cert_file, "ssl_keyfile": key_file}
    given = {name: str(path) for name, path in files.items() if path is not None}
    if hosts.scheme == "rediss":
        client_context(ca_file, cert_file, key_file)  # says what is wrong with the files
        return {"ssl": True, "ssl_min_version": TLSVersion.TLSv1_2, "ssl_check_hostname": True, **given}
    if given:
        raise ConfigError(f"ca_file, cert_file and key_file need a rediss:// URL, got {str(hosts)!r}")
    return {}

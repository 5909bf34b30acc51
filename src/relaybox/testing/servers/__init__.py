"""Private servers for tests: started on free loopback ports in temporary folders, gone afterwards.

    with PostgresServer.from_wheel(durable=False) as server:
        url = server.create_database()

Tests share one instance per process: `require("postgres-wheel")` starts it at the first call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, cast, overload

from .gate import TcpGate
from .kafka import KafkaServer
from .mariadb import MariaDBServer
from .moto import MotoServer
from .nats import NatsServer
from .pgbouncer import PgBouncer
from .postgres import PostgresServer
from .process import PrivateServer, RestartableServer, ServerFailed, ServerUnavailable
from .pubsub import PubSubServer
from .rabbitmq import RabbitMQServer
from .redis import RedisServer
from .standby import PostgresPair, PostgresStandby

__all__ = [
    "KafkaServer",
    "MariaDBServer",
    "MotoServer",
    "NatsServer",
    "PgBouncer",
    "PostgresPair",
    "PostgresServer",
    "PostgresStandby",
    "PrivateServer",
    "PubSubServer",
    "RabbitMQServer",
    "RedisServer",
    "RestartableServer",
    "ServerFailed",
    "ServerKind",
    "ServerUnavailable",
    "TcpGate",
    "require",
    "shared",
]

PostgresKind: TypeAlias = Literal["postgres-wheel", "postgres-system"]
ServerKind: TypeAlias = Literal[
    "postgres-wheel", "postgres-system", "mariadb", "pgbouncer", "kafka", "moto", "nats", "pubsub", "rabbitmq", "redis"
]

_shared: dict[tuple[int, str, bool], PrivateServer] = {}
_lock = threading.RLock()


def _renew_lock() -> None:
    """A fork may copy the lock while another thread holds it, and nobody would release the copy."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _pooled(durable: bool) -> PgBouncer:
    try:
        postgres = shared("postgres-wheel", durable=durable)
    except ServerUnavailable:
        postgres = shared("postgres-system", durable=durable)
    return PgBouncer(postgres)


_makers: dict[str, Callable[[bool], PrivateServer]] = {
    "postgres-wheel": lambda durable: PostgresServer.from_wheel(durable=durable),
    "postgres-system": lambda durable: PostgresServer.from_system(durable=durable),
    "mariadb": lambda durable: MariaDBServer.from_system(durable=durable),
    "pgbouncer": _pooled,
    "kafka": lambda durable: KafkaServer(),
    "moto": lambda durable: MotoServer(),
    "nats": lambda durable: NatsServer(durable=durable),
    "pubsub": lambda durable: PubSubServer(),
    "rabbitmq": lambda durable: RabbitMQServer(),
    "redis": lambda durable: RedisServer(durable=durable),
}


class _Get(Protocol):
    @overload
    def __call__(self, kind: PostgresKind, *, durable: bool = True) -> PostgresServer: ...
    @overload
    def __call__(self, kind: Literal["mariadb"], *, durable: bool = True) -> MariaDBServer: ...
    @overload
    def __call__(self, kind: Literal["pgbouncer"], *, durable: bool = True) -> PgBouncer: ...
    @overload
    def __call__(self, kind: Literal["kafka"], *, durable: bool = True) -> KafkaServer: ...
    @overload
    def __call__(self, kind: Literal["moto"], *, durable: bool = True) -> MotoServer: ...
    @overload
    def __call__(self, kind: Literal["nats"], *, durable: bool = True) -> NatsServer: ...
    @overload
    def __call__(self, kind: Literal["pubsub"], *, durable: bool = True) -> PubSubServer: ...
    @overload
    def __call__(self, kind: Literal["rabbitmq"], *, durable: bool = True) -> RabbitMQServer: ...
    @overload
    def __call__(self, kind: Literal["redis"], *, durable: bool = True) -> RedisServer: ...
    @overload
    def __call__(self, kind: str, *, durable: bool = True) -> PrivateServer: ...


def _get_shared(kind: str, *, durable: bool = True) -> PrivateServer:
    """The running instance of this process, started at the first call and ended at exit.

    Keyed by process id: a forked child must neither use up nor end its parent's server.
    """
    if kind not in _makers:
        raise ValueError(f"unknown kind of server {kind!r}; known: {', '.join(_makers)}")
    key = (os.getpid(), kind, durable)
    with _lock:
        server = _shared.get(key)
        if server is None:
            server = _makers[kind](durable)
        server.start()
        _shared[key] = server
        return server


def _get_or_skip(kind: str, *, durable: bool = True) -> PrivateServer:
    """`shared(kind)` for tests: skip where it cannot be had, but fail under CI=true.

    A skip on a laptop is a convenience; a skip in CI is a hole nobody looks at.
    """
    try:
        return shared(kind, durable=durable)
    except ServerUnavailable as missing:
        import pytest

        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"required under CI=true: {missing}", pytrace=False)
        pytest.skip(str(missing), allow_module_level=True)


shared = cast(_Get, _get_shared)
require = cast(_Get, _get_or_skip)

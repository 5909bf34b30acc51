"""Marks in Redis, with the client library redis-py.

A key holds `in-progress:<token>` under the lease, then `done:<token>` under the ttl. Comparing and changing is one
script. Every command may be sent twice, as clients do when a connection breaks before the reply: the token tells
that what is there is ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from math import ceil
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ..errors import ConfigError, GuardUnavailable
from ..op import T, arun, run
from ..transport import insecure, is_remote, split_url, tls_of, warn_clear, warn_unverified
from .spi import GuardSteps, KeyState, Terms

# 1: first, 2: in progress, 3: done. Whatever is not in progress is done, as the plain mode leaves it.
_ENTER = """
local there = redis.call('GET', KEYS[1])
if not there then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1 end
if there == ARGV[1] then return 1 end
if string.sub(there, 1, 12) == 'in-progress:' then return 2 end
return 3
"""
_RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
"""
# Nothing there: the lease ended and nobody has entered since, or the one that did has failed. The effect has happened.
_FINISH = """
local there = redis.call('GET', KEYS[1])
if not there or there == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1 end
if there == ARGV[2] then return 1 end
return 0
"""
_LEAVE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
_OTHER_WORDS = {"ssl_ca_certs": "ca_file", "ssl_certfile": "cert_file", "ssl_keyfile": "key_file"}
_STATES: dict[int, KeyState] = {1: "first", 2: "in progress", 3: "done"}


class RedisMarks:
    def __init__(self, terms: Terms, prefix: str) -> None:
        self.terms = terms
        self._prefix = f"{prefix}{terms.consumer}:"

    def enter(self, key: str, token: int) -> GuardSteps[KeyState]:
        if self.terms.two_phase:
            reply = yield self._script(_ENTER, key, _in_progress(token), _ms(self.terms.lease))
            return _STATES[int(reply)]
        seconds = ceil(self.terms.ttl.total_seconds())
        if (yield "SET", self._prefix + key, _done(token), "NX", "EX", seconds):
            return "first"
        there = yield "GET", self._prefix + key
        return "first" if there in (_done(token), _done(token).encode()) else "done"

    def renew(self, key: str, token: int) -> GuardSteps[bool]:
        reply = yield self._script(_RENEW, key, _in_progress(token), _ms(self.terms.lease))
        return bool(reply)

    def finish(self, key: str, token: int) -> GuardSteps[bool]:
        if not self.terms.two_phase:
            return True
        reply = yield self._script(_FINISH, key, _in_progress(token), _done(token), _ms(self.terms.ttl))
        return bool(reply)

    def leave(self, key: str, token: int) -> GuardSteps[bool]:
        reply = yield self._script(_LEAVE, key, _in_progress(token) if self.terms.two_phase else _done(token))
        return bool(reply)

    def forget(self, key: str) -> GuardSteps[None]:
        yield "DEL", self._prefix + key

    def _script(self, script: str, key: str, *args: str | int) -> tuple[str | int, ...]:
        return "EVAL", script, 1, self._prefix + key, *args


def _in_progress(token: int) -> str:
    return f"in-progress:{token:x}"


def _done(token: int) -> str:
    return f"done:{token:x}"


def _ms(duration: timedelta) -> int:
    return ceil(duration / timedelta(milliseconds=1))


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        said = str(error).rstrip(".")
        raise GuardUnavailable(f"Redis did not answer: {type(error).__name__}: {said}") from error


class Redis:
    """A client, ours or the caller's, behind the face of a database: `run` and `close`."""

    def __init__(self, client: Any, *, ours: bool) -> None:
        self._client = client
        self._ours = ours

    def run(self, steps: GuardSteps[T], *, tx: bool = False) -> T:
        return run(steps, self)

    def execute(self, command: Any) -> Any:
        with translated():
            return self._client.execute_command(*command)

    def close(self) -> None:
        if self._ours:
            self._client.close()


class AsyncRedis:
    def __init__(self, client: Any, *, ours: bool) -> None:
        self._client = client
        self._ours = ours

    async def run(self, steps: GuardSteps[T], *, tx: bool = False) -> T:
        return await arun(steps, self)

    async def execute(self, command: Any) -> Any:
        with translated():
            return await self._client.execute_command(*command)

    async def close(self) -> None:
        if self._ours:
            await self._client.aclose()


def connect(target: Any, timeout: timedelta) -> Redis:
    if not isinstance(target, str):
        return Redis(_client(target, is_async=False), ours=False)
    return Redis(_opened(redis.Redis, target, timeout, Retry), ours=True)


def aconnect(target: Any, timeout: timedelta) -> AsyncRedis:
    if not isinstance(target, str):
        return AsyncRedis(_client(target, is_async=True), ours=False)
    return AsyncRedis(_opened(redis.asyncio.Redis, target, timeout, AsyncRetry), ours=True)


def _opened(kind: Any, url: str, timeout: timedelta, retry: Any) -> Any:
    """Once more on a new connection if the old one was closed, as by a restart; never after a timeout."""
    seconds = timeout.total_seconds()
    if seconds <= 0:
        raise ConfigError(f"expected timeout to be a positive duration, got {timeout}")
    again = retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    try:
        url, tls = _transport(url)
        return kind.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=again, **tls)
    except ConfigError:
        raise
    except (ValueError, TypeError):  # whose text may hold a part of the password
        raise ConfigError(
            "cannot read the Redis URL; expected redis://user:password@host:6379/0, rediss:// or unix://, with special "
            "characters of the password percent-encoded"
        ) from None


def _transport(url: str) -> tuple[str, dict[str, Any]]:
    """The URL for redis-py, and what it shall do about TLS."""
    url, options, _ = split_url(url, _OTHER_WORDS)
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        return url, {}
    _ = parts.port  # may be no number
    tls, remote = tls_of(options), is_remote(parts.hostname or "")
    if parts.scheme == "rediss" and tls.mode != "off":
        tls = replace(tls, mode=tls.mode or "verify")
    elif parts.scheme == "rediss":
        raise ConfigError("tls=off makes no sense with rediss://")
    if tls.mode in ("verify", "require"):
        if remote and tls.mode == "require":
            warn_unverified("Redis", parts.hostname or "", "use tls=verify")
        tls.context()  # says what is wrong with the files
        files = {"ssl_ca_certs": tls.ca_file, "ssl_certfile": tls.cert_file, "ssl_keyfile": tls.key_file}
        verified = tls.mode == "verify"
        wanted = {"ssl_check_hostname": verified, "ssl_cert_reqs": "required" if verified else "none"}
        return urlunsplit(parts._replace(scheme="rediss")), {**files, **wanted}
    if remote and parts.password and not insecure(options):
        raise ConfigError(
            "the password for Redis would go over the network in clear text; use rediss://, or insecure_no_tls=true "
            "if you trust the network"
        )
    if remote:
        warn_clear("Redis", parts.hostname or "", "use rediss://")
    return url, {}


def _client(target: Any, *, is_async: bool) -> Any:
    execute = getattr(target, "execute_command", None)
    if execute is None or inspect.iscoroutinefunction(execute) != is_async:
        wanted = "redis.asyncio.Redis" if is_async else "redis.Redis"
        raise ConfigError(
            f"expected a Redis URL or a {wanted} client, got a {type(target).__module__}.{type(target).__qualname__}"
        )
    return target

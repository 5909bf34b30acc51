"""One face for Guard and AsyncGuard, and for the places where they keep their marks."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kit import INNODB, rows
from kit import until as look_until
from relaybox import AsyncGuard, Guard

PATIENCE = 20.0
PREFIX = "relaybox:processed:"
until = partial(look_until, pause=INNODB)


def client(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url, decode_responses=True, socket_timeout=5)


class Place:
    """A fresh place for marks, and a look into it past relaybox."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    def open(self, *, is_async: bool = False, **options: Any) -> Twin:
        cls: Any = AsyncGuard if is_async else Guard
        options.setdefault("consumer", "email")
        return Twin((cls.redis if self.kind == "redis" else cls.sql)(self.url, **options))

    def migrate(self) -> None:
        if self.kind != "redis":
            with Guard.sql(self.url, consumer="email") as guard:
                guard.migrate()

    def mark(self, key: str, consumer: str = "email") -> tuple[str, str] | None:
        """(state, token) of a mark as it is stored."""
        if self.kind == "redis":
            with client(self.url) as redis:
                value = redis.get(f"{PREFIX}{consumer}:{key}")
            return None if value is None else tuple(value.split(":"))
        where = f"WHERE consumer = '{consumer}' AND event_id = '{key}'"
        found = rows(self.url, f"SELECT done_at IS NULL, token FROM relaybox_guard {where}")
        return ("in-progress" if found[0][0] else "done", str(found[0][1])) if found else None

    def state(self, key: str, consumer: str = "email") -> str | None:
        mark = self.mark(key, consumer)
        return mark and mark[0]

    def until(self, key: str) -> Any:
        """When the mark ends, as something that grows when it is renewed."""
        if self.kind == "redis":
            with client(self.url) as redis:
                return redis.pexpiretime(f"{PREFIX}email:{key}")
        return rows(self.url, f"SELECT until FROM relaybox_guard WHERE event_id = '{key}'")[0][0]

    def steal(self, key: str) -> None:
        """As if the lease had ended and another process had entered."""
        if self.kind == "redis":
            with client(self.url) as redis:
                redis.set(f"{PREFIX}email:{key}", "in-progress:beef", px=60_000)
        else:
            rows(self.url, f"UPDATE relaybox_guard SET token = 48879 WHERE event_id = '{key}'")

    def forget(self, key: str) -> None:
        """As if the lease had ended and the mark were gone."""
        if self.kind == "redis":
            with client(self.url) as redis:
                redis.delete(f"{PREFIX}email:{key}")
        else:
            rows(self.url, f"DELETE FROM relaybox_guard WHERE event_id = '{key}'")


class Twin:
    """Guard or AsyncGuard behind awaitable calls. A sync guard is used in place, as its handles must be."""

    def __init__(self, raw: Guard | AsyncGuard) -> None:
        self.raw: Any = raw
        self.is_async = isinstance(raw, AsyncGuard)

    @asynccontextmanager
    async def __call__(self, key: Any) -> AsyncIterator[bool]:
        if self.is_async:
            async with self.raw(key) as first:
                yield first
        else:
            with self.raw(key) as first:
                yield first

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        result = getattr(self.raw, name)(*args, **options)
        return await result if self.is_async else result

    async def __aenter__(self) -> Twin:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.call("close")


def quicken(guard: Any) -> None:
    """Renew all the time, under a lease that outlives the test."""
    guard._every = lambda: 0.05
    if isinstance(guard, Guard):
        guard._renewer._every = 0.05


class EffectFailed(Exception):
    pass


def fail() -> None:
    raise EffectFailed


async def deliver(guard: Any, key: Any, *effects: Callable[[], Any]) -> None:
    """One delivery: the effects happen, in order, if it is the first."""
    async with guard(key) as first:
        for effect in effects if first else ():
            if inspect.isawaitable(result := effect()):
                await result


@contextmanager
def child(*args: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m guard.child …`, ended by the test or by us."""
    tests = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "guard.child", *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests.parent / "src"), str(tests)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()

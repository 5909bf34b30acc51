"""The two-phase protocol against a model: any interleaving of consumers, crashes, time and purges.

On SQL time is injected; on Redis the machine deletes what has expired, as Redis itself would.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule, run_state_machine_as_test

from relaybox import Guard
from relaybox.drivers import open_sync
from relaybox.ids import new_token
from relaybox.op import run
from relaybox.testing.clock import ManualClock
from relaybox.testing.servers import require

from .kit import client

LEASE, TTL = 30, 100
KEYS = st.sampled_from(["a", "b"])


class Row(NamedTuple):
    token: int
    done: bool
    until: timedelta


class Protocol(RuleBasedStateMachine):
    claims = Bundle("claims")  # (key, token) of everybody who was ever first, zombies included
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.model: dict[str, Row] = {}

    @initialize()
    def open(self) -> None:
        self.guard = self.make_guard()

    def make_guard(self) -> Guard:
        raise NotImplementedError

    def teardown(self) -> None:
        if hasattr(self, "guard"):
            self.guard.close()

    def run(self, move: str, key: str, token: int) -> Any:
        return self.guard._run(getattr(self.guard._marks, move)(key, token))

    @property
    def time(self) -> timedelta:
        return timedelta(seconds=self.clock.monotonic())

    def there(self, key: str) -> Row | None:
        row = self.model.get(key)
        return row if row is not None and row.until > self.time else None

    def mine(self, key: str, token: int) -> bool:
        """Whether the key still shows this token; also after its time, as long as nobody took it."""
        row = self.model.get(key)
        return row is not None and row.token == token

    # -- what consumers do ---------------------------------------------------------------------------

    @rule(target=claims, key=KEYS)
    def enter(self, key: str) -> Any:
        token, row = new_token(), self.there(key)
        expected = "first" if row is None else "done" if row.done else "in progress"
        assert self.run("enter", key, token) == expected
        if row is not None:
            return multiple()
        self.model[key] = Row(token, False, self.time + timedelta(seconds=LEASE))
        return key, token

    @rule(claim=claims)
    def renew(self, claim: tuple[str, int]) -> None:
        held = self.mine(*claim) and not self.model[claim[0]].done
        assert self.run("renew", *claim) is held
        if held:
            self.model[claim[0]] = Row(claim[1], False, self.time + timedelta(seconds=LEASE))

    @rule(claim=claims)
    def finish(self, claim: tuple[str, int]) -> None:
        """Also when the lease has ended, unless somebody else has the key: the effect has happened."""
        held = self.mine(*claim) and not self.model[claim[0]].done
        free = claim[0] not in self.model
        assert self.run("finish", *claim) is (held or free or self.repeated(*claim))
        if held or free:
            self.model[claim[0]] = Row(claim[1], True, self.time + timedelta(seconds=TTL))

    def repeated(self, key: str, token: int) -> bool:
        """Whether to finish a second time is answered with yes: a Redis command may be sent twice."""
        return False

    @rule(claim=claims)
    def fail(self, claim: tuple[str, int]) -> None:
        held = self.mine(*claim) and not self.model[claim[0]].done
        if self.mine(*claim) and not held:
            return  # a guard never leaves what it has finished
        assert self.run("leave", *claim) is held
        if held:
            del self.model[claim[0]]

    # -- what happens to them ------------------------------------------------------------------------

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.forget_expired()

    def forget_expired(self) -> None: ...


class SqlProtocol(Protocol):
    def make_guard(self) -> Guard:
        guard = Guard.sql(self.url, consumer="email", lease=LEASE, ttl=TTL, clock=self.clock)
        guard.migrate()
        return guard

    def teardown(self) -> None:
        if hasattr(self, "guard"):
            self.clock.advance(days=1)
            self.guard.purge()
        super().teardown()

    @rule()
    def purge(self) -> None:
        gone = [key for key in self.model if self.there(key) is None]
        assert self.guard.purge(batch_size=1) == len(gone)
        for key in gone:
            del self.model[key]

    @rule(key=KEYS, commits=st.booleans())
    def mark(self, key: str, commits: bool) -> None:
        """In a caller's transaction, meeting whatever is there."""
        database, token, row = open_sync(self.url), new_token(), self.there(key)
        with database.connection() as connection:
            connection.begin()
            verdict = run(self.guard._sql().mark(key, token), connection)
            connection.commit() if commits else connection.rollback()
        database.close()
        assert verdict == ("first" if row is None else "done" if row.done else "in progress")
        if commits and row is None:
            self.model[key] = Row(token, True, self.time + timedelta(seconds=TTL))


class RedisProtocol(Protocol):
    def make_guard(self) -> Guard:
        with client(self.url) as redis:
            redis.flushdb()
        return Guard.redis(self.url, consumer="email", lease=LEASE * 1000, ttl=TTL * 1000)  # longer than any test

    def repeated(self, key: str, token: int) -> bool:
        return self.mine(key, token) and self.model[key].done

    def forget_expired(self) -> None:
        for key in [key for key in self.model if self.there(key) is None]:
            del self.model[key]
            with client(self.url) as redis:
                redis.delete(f"relaybox:processed:email:{key}")


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="relaybox-guard-")


def url_of(kind: str) -> str:
    if kind == "sqlite":
        return f"sqlite:///{Path(folder().name) / 'protocol.db'}"
    if kind == "redis":
        return require("redis", durable=False).fresh_url()
    return require("postgres-wheel" if kind == "postgres" else "mariadb", durable=False).create_database()


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 60), ("postgres", 20), ("mariadb", 20), ("redis", 60)])
def test_protocol(kind: str, examples: int) -> None:
    machine: type[Protocol] = RedisProtocol if kind == "redis" else SqlProtocol
    made: Any = type(f"{kind.title()}Protocol", (machine,), {"url": url_of(kind)})
    health = list(HealthCheck)
    run_state_machine_as_test(
        made,
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=health),
    )

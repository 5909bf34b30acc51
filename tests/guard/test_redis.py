"""What only Redis can show: the exact commands, and what happens when it does not answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relaybox import ConfigError, RelayboxError
from relaybox.errors import GuardUnavailable
from relaybox.testing.servers import RedisServer, TcpGate

from .kit import PREFIX, EffectFailed, Place, Twin, client, deliver, fail, quicken, until


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """One of the test's own: it is going to be stopped."""
    with RedisServer(durable=False) as server:
        yield server


@asynccontextmanager
async def guarding(server: RedisServer, **options: Any) -> AsyncIterator[Twin]:
    async with Place("redis", server.url).open(**options) as guard:
        yield guard


# -- commands ----------------------------------------------------------------------------------------


async def test_the_plain_mode_sends_set_nx_ex(redis_place: Place, is_async: bool) -> None:
    """As MONITOR shows it."""
    async with redis_place.open(is_async=is_async, mode="setnx") as guard:
        with client(redis_place.url) as redis, redis.monitor() as monitor:
            await guard.call("try_mark", "m1")
            await guard.call("forget", "m1")
            told = [monitor.next_command()["command"]]
            while not told[-1].startswith("DEL"):
                told.append(monitor.next_command()["command"])
    [command] = [line for line in told if line.startswith("SET ")]
    verb, key, value, *rest = command.split()
    assert (verb, key, rest) == ("SET", "relaybox:processed:email:m1", ["NX", "EX", str(720 * 3600)])
    assert value.startswith("done:")
    assert told[-1] == "DEL relaybox:processed:email:m1"


async def test_prefix_and_ttl_are_options(redis_place: Place) -> None:
    async with redis_place.open(mode="setnx", prefix="shop:", ttl="90s") as guard:
        await guard.call("try_mark", "m1")
    with client(redis_place.url) as redis:
        assert redis.keys("*") == ["shop:email:m1"]
        assert 0 < redis.ttl("shop:email:m1") <= 90


async def test_the_lease_and_then_the_ttl_bound_a_mark(redis_place: Place, is_async: bool) -> None:
    async with redis_place.open(is_async=is_async, lease="10s", ttl="2h") as guard:
        with client(redis_place.url) as redis:
            async with guard("m1"):
                assert 0 < redis.pttl(f"{PREFIX}email:m1") <= 10_000
            assert 7_100_000 < redis.pttl(f"{PREFIX}email:m1") <= 7_200_000


# -- Redis is away -----------------------------------------------------------------------------------


async def test_without_redis_nothing_is_handled(server: RedisServer, is_async: bool) -> None:
    async with guarding(server, is_async=is_async) as guard:
        server.stop()
        with pytest.raises(GuardUnavailable, match="nobody knows whether 'm1' was handled") as refused:
            async with guard("m1"):
                pytest.fail("entered")
        assert isinstance(refused.value, RelayboxError)
        server.start()
        async with guard("m1") as first:
            assert first


async def test_without_redis_everything_is_handled_if_so_wished(
    server: RedisServer, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarding(server, is_async=is_async, on_unavailable="open") as guard:
        server.stop()
        for _ in range(2):
            async with guard("m1") as first:
                assert first
        assert "on_unavailable is open" in caplog.text


async def test_a_mark_that_cannot_be_deleted_is_an_error_or_a_log_line(
    server: RedisServer, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"is_async": is_async, "mode": "setnx"}
    async with guarding(server, **options) as closed, guarding(server, **options, on_unavailable="open") as opened:
        server.stop()
        with pytest.raises(GuardUnavailable, match="'m1' may stay marked"):
            await closed.call("forget", "m1")
        await opened.call("forget", "m1")
    assert "'m1' may stay marked" in caplog.text
    assert "on_unavailable is open" in caplog.text


async def test_a_redis_that_hangs_costs_the_timeout(server: RedisServer, is_async: bool) -> None:
    async with guarding(server, is_async=is_async, timeout="500ms") as guard:
        async with guard("m1"):
            pass
        server.pause()
        began = time.monotonic()
        with pytest.raises(GuardUnavailable, match="Timeout"):
            async with guard("m2"):
                pytest.fail("entered")
        assert time.monotonic() - began < 5
        server.resume()


async def test_redis_goes_while_the_block_runs(server: RedisServer, is_async: bool) -> None:
    async with guarding(server, is_async=is_async) as guard:
        with pytest.raises(GuardUnavailable, match="'m1' was handled but is not marked"):
            async with guard("m1"):
                server.stop()


async def test_redis_goes_while_the_block_runs_and_that_is_fine(
    server: RedisServer, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarding(server, is_async=is_async, on_unavailable="open") as guard:
        async with guard("m1"):
            server.stop()
        assert "'m1' was handled but is not marked" in caplog.text


async def test_redis_returns_while_an_unguarded_block_runs(server: RedisServer, is_async: bool) -> None:
    """The mark is made up for."""
    async with guarding(server, is_async=is_async, on_unavailable="open") as guard:
        server.stop()
        async with guard("m1") as first:
            assert first
            server.start()
        assert Place("redis", server.url).state("m1") == "done"


@pytest.mark.parametrize("mode", ["two-phase", "setnx"])
async def test_the_error_of_a_block_is_never_hidden(
    server: RedisServer, is_async: bool, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarding(server, is_async=is_async, mode=mode) as guard:
        with pytest.raises(EffectFailed):
            await deliver(guard, "m1", server.stop, fail)
    stays = "0:00:30" if mode == "two-phase" else "30 days"
    assert f"could not be taken back and stays for up to {stays}" in caplog.text


async def test_a_renewal_that_fails_is_tried_again(
    server: RedisServer, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarding(server, is_async=is_async, lease="30s") as guard:
        quicken(guard.raw)
        async with guard("m1"):
            server.stop()
            await until(lambda: "could not be renewed" in caplog.text, "failed renewal")
            server.start()
            before = Place("redis", server.url).until("m1")
            await until(lambda: Place("redis", server.url).until("m1") > before, "renewal")
        assert Place("redis", server.url).state("m1") == "done"


@pytest.mark.parametrize("mode", ["two-phase", "setnx"])
async def test_a_restart_between_two_messages_is_not_noticed(server: RedisServer, is_async: bool, mode: str) -> None:
    async with guarding(server, is_async=is_async, mode=mode) as guard:
        for key in ("m1", "m2"):
            async with guard(key) as first:
                assert first
            server.restart()
        async with guard("m1") as first:
            assert not first


@pytest.mark.parametrize("mode", ["two-phase", "setnx"])
async def test_a_command_sent_twice_does_not_meet_its_own_mark(redis_place: Place, mode: str) -> None:
    """A client that repeats when the reply was lost must not take its own mark for another's."""
    async with redis_place.open(mode=mode) as guard:
        marks = guard.raw._marks
        run = guard.raw._run
        assert run(marks.enter("m1", 7)) == "first"
        assert run(marks.enter("m1", 7)) == "first"
        assert run(marks.finish("m1", 7))
        assert run(marks.finish("m1", 7))
        assert run(marks.enter("m1", 8)) == "done"


async def test_a_lost_reply_leaves_a_lease_that_ends(server: RedisServer, is_async: bool) -> None:
    with TcpGate(server.port) as gate:
        place = Place("redis", gate.through(server.url))
        async with place.open(is_async=is_async, timeout="500ms", lease="3s") as guard:
            async with guard("m0"):
                pass
            gate.drop_replies()
            with pytest.raises(GuardUnavailable):
                async with guard("m1"):
                    pytest.fail("entered")
            assert Place("redis", server.url).state("m1") == "in-progress"
            gate.open()
            await until(lambda: Place("redis", server.url).state("m1") is None, "end of the lease")
            async with guard("m1") as first:
                assert first


# -- clients and addresses ---------------------------------------------------------------------------


async def test_a_client_of_the_caller_stays_open(redis_place: Place, is_async: bool) -> None:
    import redis
    import redis.asyncio

    kind: Any = redis.asyncio.Redis if is_async else redis.Redis
    mine = kind.from_url(redis_place.url, decode_responses=True)
    for mode in ("two-phase", "setnx"):
        async with Place("redis", mine).open(is_async=is_async, mode=mode) as guard:
            for expected in (True, False):
                async with guard(mode) as first:
                    assert first is expected
    pong = mine.ping()
    assert (await pong) if is_async else pong
    await mine.aclose() if is_async else mine.close()


async def test_a_client_of_the_other_kind_is_refused(redis_place: Place, is_async: bool) -> None:
    import redis
    import redis.asyncio

    kind: Any = redis.Redis if is_async else redis.asyncio.Redis
    for target in (kind.from_url(redis_place.url), object()):
        with pytest.raises(ConfigError, match="expected a Redis URL or a redis"):
            Place("redis", target).open(is_async=is_async)


CANARY = "canary-7f3a"


async def test_tls_and_a_password(is_async: bool) -> None:
    with RedisServer(durable=False, password=CANARY, tls=True) as server:
        async with Place("redis", server.url).open(is_async=is_async) as guard:
            for expected in (True, False):
                async with guard("m1") as first:
                    assert first is expected


async def test_no_password_in_any_message(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    shown = []
    with RedisServer(durable=False, password="right") as server:
        wrong = server.url.replace(":right@", f":{CANARY}@")
        for options in ({}, {"on_unavailable": "open"}):
            async with Place("redis", wrong).open(is_async=is_async, **options) as guard:
                shown.append(repr(guard.raw))
                try:
                    async with guard("m1"):
                        pass
                except GuardUnavailable as error:
                    shown += [str(error), str(error.__cause__), str(error.__cause__.__cause__)]  # type: ignore[union-attr]
    for url in (
        f"redis://:{CANARY}/x@host",
        f"redis://:a@host:{CANARY}",
        f"http://:{CANARY}@host",
        f"redis://h?db={CANARY}",
    ):
        with pytest.raises(ConfigError) as refused:
            await Place("redis", url).open(is_async=is_async).call("close")
        assert refused.value.__suppress_context__
        shown.append(str(refused.value))
    assert CANARY not in "\n".join([*shown, caplog.text])
    assert len(shown) == 9


@pytest.mark.parametrize("option", [{"on_unavailable": "ajar"}, {"timeout": "0s"}])
def test_options_of_redis_are_checked(option: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"closed or open|positive duration"):
        Place("redis", "redis://localhost").open(**option)

"""F55: what an endpoint can do to us, and what it costs. Real sockets, bytes counted at the client's end."""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from httpcore._backends.anyio import AnyIOStream
from scripted_endpoint import Authority, ScriptedEndpoint, answer, endpoint, hang, raw, reset

from relaybox.brokers.webhook.client import RESPONSE_BYTES, RESPONSE_SECONDS
from relaybox.brokers.webhook.signature import new_secret
from relaybox.brokers.webhook.sink import WebhookSink
from relaybox.errors import BrokerUnavailable, ConfigError, DeliveryError, Reject, RetryLater
from relaybox.spi import Answer
from relaybox.testing.sink_contract import messages

SECRET = new_secret()
MEGABYTE = 1_048_576
HEAD = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def sink_for(*endpoints: ScriptedEndpoint, **options: Any) -> AsyncIterator[WebhookSink]:
    given: dict[str, Any] = {
        "secrets": [SECRET],
        "allow_networks": ["127.0.0.0/8"],
        "ports": [each.port for each in endpoints],
        "insecure_http": True,
    }
    sink = WebhookSink(**given | options)
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


async def send(sink: WebhookSink, url: str, count: int = 1) -> list[Answer]:
    return list(await sink.publish(messages(sink, url, [f"key-{n}" for n in range(count)])))


class Meter:
    """Bytes that the client took from its sockets."""

    def __init__(self) -> None:
        self.read = 0


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    made = Meter()
    original = AnyIOStream.read

    async def read(stream: AnyIOStream, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await original(stream, max_bytes, timeout)
        made.read += len(data)
        return data

    monkeypatch.setattr(AnyIOStream, "read", read)
    return made


@pytest.fixture
def stopwatch() -> Any:
    started = time.monotonic()
    return lambda: time.monotonic() - started


# -- bodies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", [b"content-length: 104857600\r\n\r\n", b"\r\n"], ids=["sized", "until closed"])
async def test_a_body_of_100_megabytes(meter: Meter, stopwatch: Any, framing: bytes) -> None:
    written = 0

    async def pour(request: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(HEAD + framing)
        for _ in range(100):
            writer.write(b"x" * MEGABYTE)
            await writer.drain()
            written += MEGABYTE

    async with endpoint(pour) as server, sink_for(server) as sink:
        assert await send(sink, server.url()) == [None]
        assert meter.read <= RESPONSE_BYTES + 2 * 65_536
        server.behaviour = answer(200)
        assert await send(sink, server.url()) == [None]
        assert server.connections == 2, "the rest was not read: its connection is gone"
    assert written < 100 * MEGABYTE
    assert stopwatch() < 5


async def test_a_chunked_body_without_end(meter: Meter, stopwatch: Any) -> None:
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    flood = raw(HEAD + b"transfer-encoding: chunked\r\n\r\n", chunk, for_ever=True)
    async with endpoint(flood) as server, sink_for(server) as sink:
        assert await send(sink, server.url()) == [None]
    assert meter.read <= RESPONSE_BYTES + 2 * 65_536
    assert stopwatch() < 5


async def test_a_bomb_is_not_unpacked(meter: Meter) -> None:
    bomb = gzip.compress(b"\0" * (50 * MEGABYTE))
    async with endpoint(answer(200, bomb, content_encoding="gzip")) as server, sink_for(server) as sink:
        tracemalloc.start()
        try:
            assert await send(sink, server.url()) == [None]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert server.requests[0].headers["accept-encoding"] == "identity"
    assert peak < 5 * MEGABYTE
    assert meter.read <= RESPONSE_BYTES + 2 * 65_536


async def test_a_slow_body_does_not_hold_back_the_answer(stopwatch: Any) -> None:
    slow = raw(HEAD + b"content-length: 1000\r\n\r\n", b"x", pause=0.1, for_ever=True)
    async with endpoint(slow) as server, sink_for(server) as sink:
        assert await send(sink, server.url()) == [None]
    assert stopwatch() < RESPONSE_SECONDS + 2


@pytest.mark.parametrize("end", ["cut", "reset", "junk"])
async def test_a_body_that_breaks_off_is_still_an_answer(end: str) -> None:
    async def behave(request: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        if end == "reset":
            await reset(request, writer)
        else:
            writer.write(b"no chunk\r\n" if end == "junk" else b"")
            writer.close()

    async with endpoint(behave) as server, sink_for(server) as sink:
        assert await send(sink, server.url()) == [None]


async def test_a_whole_answer_lets_the_connection_live() -> None:
    async with endpoint(answer(200, b"x" * RESPONSE_BYTES)) as server, sink_for(server) as sink:
        for _ in range(5):
            assert await send(sink, server.url()) == [None]
        assert (server.connections, len(server.requests)) == (1, 5)


# -- time -------------------------------------------------------------------------------------------

TIMEOUTS = {
    "timeout": timedelta(seconds=0.6),
    "connect_timeout": timedelta(seconds=0.4),
    "read_timeout": timedelta(seconds=0.5),
}


def unavailable(answers: list[Answer], url: str) -> str:
    [outage] = answers
    assert type(outage) is BrokerUnavailable
    assert outage.destination == url
    return str(outage)


async def test_silence(stopwatch: Any) -> None:
    async with endpoint(hang) as server, sink_for(server, **TIMEOUTS) as sink:
        assert "no answer in time" in unavailable(await send(sink, server.url()), server.url())
    assert stopwatch() < 3


@pytest.mark.parametrize(
    "drip",
    [b"x", b"HTTP/1.1 100 Continue\r\n\r\n", b"x-more: and more\r\n"],
    ids=["status line", "1xx for ever", "headers"],
)
async def test_an_answer_that_never_ends(stopwatch: Any, drip: bytes) -> None:
    first = HEAD if drip.startswith(b"x-") else b""
    async with endpoint(raw(first, drip, pause=0.05, for_ever=True)) as server, sink_for(server, **TIMEOUTS) as sink:
        unavailable(await send(sink, server.url()), server.url())
    assert stopwatch() < 3


async def test_headers_without_end(meter: Meter, stopwatch: Any) -> None:
    flood = raw(HEAD, b"x-more: " + b"y" * 8000 + b"\r\n", for_ever=True)
    async with endpoint(flood) as server, sink_for(server) as sink:
        unavailable(await send(sink, server.url()), server.url())
    assert meter.read < 4 * 65_536
    assert stopwatch() < 5


async def test_a_hang_inside_tls(stopwatch: Any) -> None:
    """The connection stands, the handshake is never answered."""
    async with endpoint(None) as server, sink_for(server, **TIMEOUTS) as sink:
        url = server.url(scheme="https")
        assert "could not be reached in time" in unavailable(await send(sink, url), url)
        assert server.connections == 1
    assert stopwatch() < 3


async def test_a_resolver_that_hangs(stopwatch: Any) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with sink_for(insecure_http=False, ports=None, resolver=resolver, **TIMEOUTS) as sink:
        url = "https://hooks.example/"
        assert "could not be reached in time" in unavailable(await send(sink, url), url)
    assert stopwatch() < 3


async def test_a_receiver_that_reads_nothing(stopwatch: Any) -> None:
    """Our own writing is bounded too."""

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with endpoint(None) as server, sink_for(server, **TIMEOUTS) as sink:
        server.serve = deaf  # type: ignore[method-assign]
        answers = await sink.publish(messages(sink, server.url(), ["a"], b"x" * MEGABYTE))
        assert "no answer in time" in unavailable(list(answers), server.url())
    assert stopwatch() < 3


# -- connections ------------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    async with endpoint(hang) as server:
        pass
    async with sink_for(server) as sink:
        assert "cannot be reached" in unavailable(await send(sink, server.url()), server.url())


async def test_a_name_that_does_not_resolve() -> None:
    async with sink_for(insecure_http=False, ports=None) as sink:
        url = "https://nowhere.invalid/"
        assert "cannot be reached" in unavailable(await send(sink, url), url)


@pytest.mark.parametrize("behaviour", [reset, raw(b""), raw(b"HTTP/1.1 2"), raw(b"220 smtp.example ESMTP\r\n")])
async def test_a_connection_that_breaks(behaviour: Any) -> None:
    async with endpoint(behaviour) as server, sink_for(server) as sink:
        unavailable(await send(sink, server.url()), server.url())


async def test_an_idle_connection_that_was_closed_is_no_outage() -> None:
    """A receiver that hangs up between two requests has done nothing wrong."""

    async def once(request: Any, writer: asyncio.StreamWriter) -> None:
        await answer(200)(request, writer)
        writer.close()
        await writer.wait_closed()

    async with endpoint(once) as server, sink_for(server) as sink:
        for _ in range(5):
            assert await send(sink, server.url()) == [None]
            while server.open:
                await asyncio.sleep(0)
        assert server.connections == 5


# -- statuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with endpoint(answer(200)) as trap:
        elsewhere = trap.url("/stolen?canary")
        async with endpoint(answer(status, location=elsewhere)) as server, sink_for(server, trap) as sink:
            [failure] = await send(sink, server.url())
        assert type(failure) is DeliveryError
        assert "redirects are not followed" in str(failure)
        assert "canary" not in str(failure)
        assert trap.connections == 0


async def test_gone_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async with endpoint(answer(410)) as server, sink_for(server) as sink:
        for _ in range(3):
            [answered] = await send(sink, server.url("/a"))
            assert isinstance(answered, Reject)
        assert len(server.requests) == 1, "later ones are rejected without asking again"
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert sum("switched off" in message for message in warnings) == 1
        server.behaviour = answer(200)
        assert await send(sink, server.url("/b")) == [None], "another endpoint on the host lives on"
    async with endpoint(answer(200), port=server.port) as server, sink_for(server) as sink:
        assert await send(sink, server.url("/a")) == [None], "a new process asks again"


@pytest.mark.parametrize(
    ("given", "seconds"), [("120", 120), ("99999999999", 3600), ("0", None), ("-1", None), ("soon", None), (None, None)]
)
async def test_asked_for_a_pause(given: str | None, seconds: float | None) -> None:
    for status in (429, 503):
        headers = {"retry_after": given} if given is not None else {}
        async with endpoint(answer(status, **headers)) as server, sink_for(server) as sink:
            [outage] = await send(sink, server.url())
        assert isinstance(outage, BrokerUnavailable)
        assert outage.retry_after == (None if seconds is None else timedelta(seconds=seconds))


async def test_a_counted_failure_with_a_pause() -> None:
    async with endpoint(answer(500, retry_after="7")) as server, sink_for(server) as sink:
        [failure] = await send(sink, server.url())
    assert isinstance(failure, RetryLater)
    assert failure.delay == timedelta(seconds=7)


# -- amplification ----------------------------------------------------------------------------------


async def test_no_more_than_so_many_at_once() -> None:
    """Per host, whatever the number of endpoints and of publishes."""
    full = asyncio.Semaphore(0)
    go = asyncio.Event()

    async def wait(request: Any, writer: asyncio.StreamWriter) -> None:
        full.release()
        await go.wait()
        await answer(200)(request, writer)

    async with endpoint(wait) as server, sink_for(server, max_per_host=3) as sink:
        tasks = [asyncio.create_task(send(sink, server.url(f"/{n}"), 10)) for n in range(3)]
        for _ in range(3):
            await full.acquire()
        go.set()
        assert await asyncio.gather(*tasks) == [[None] * 10] * 3
        assert server.most_open == 3
        assert len(server.requests) == 30


async def test_an_endpoint_may_want_less() -> None:
    async with endpoint(answer(200)) as server:
        one = {"url": server.url(), "secrets": SECRET, "max_in_flight": 1}
        async with sink_for(server, endpoints={"one": one}) as sink:
            assert await send(sink, "one", 10) == [None] * 10
        assert server.most_open == 1


@pytest.mark.parametrize("behaviour", [answer(503), answer(429, retry_after="60"), reset, hang])
async def test_a_batch_does_not_hammer_what_is_down(behaviour: Any, stopwatch: Any) -> None:
    async with endpoint(behaviour) as server, sink_for(server, max_in_flight=4, **TIMEOUTS) as sink:
        answers = await send(sink, server.url(), sink.features.batch)
        assert {type(answer) for answer in answers} == {BrokerUnavailable}
        assert len(server.requests) <= 4
    assert stopwatch() < 3


async def test_an_endpoint_that_hangs_stops_no_other() -> None:
    async with endpoint(hang) as stuck, endpoint(answer(200)) as fine, sink_for(stuck, fine, max_in_flight=2) as sink:
        waiting = asyncio.create_task(send(sink, stuck.url(), 30))
        while stuck.open < 2:
            await asyncio.sleep(0)
        for _ in range(5):
            assert await send(sink, fine.url(), 20) == [None] * 20
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()


# -- TLS --------------------------------------------------------------------------------------------


async def resolver(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secured(authority: Authority, **options: Any) -> dict[str, Any]:
    return {"insecure_http": False, "resolver": resolver, "ca_file": authority.file, **options}


async def test_tls(authority: Authority) -> None:
    async with endpoint(answer(200), tls=authority.server("hooks.example")) as server:
        async with sink_for(server, **secured(authority)) as sink:
            assert await send(sink, server.url(scheme="https", host="hooks.example")) == [None]
    assert server.requests[0].headers["host"] == f"hooks.example:{server.port}"


@pytest.mark.parametrize("case", ["wrong host", "expired", "unknown authority"])
async def test_tls_that_is_not_trusted(authority: Authority, tmp_path: Path, case: str) -> None:
    tls = authority.server("hooks.example", days=0 if case == "expired" else 1)
    trusted = authority
    if case == "unknown authority":
        (tmp_path / "other").mkdir()
        trusted = Authority(tmp_path / "other")
    async with endpoint(answer(200), tls=tls) as server, sink_for(server, **secured(trusted)) as sink:
        url = server.url(scheme="https", host="evil.example" if case == "wrong host" else "hooks.example")
        assert "cannot be reached" in unavailable(await send(sink, url), url)
        assert server.requests == [], "nothing is said to a stranger"


async def test_no_tls_where_it_should_be(authority: Authority) -> None:
    """There is no falling back to plain text."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"content-length: 0\r\n\r\n")
        await reader.read()

    async with endpoint(None) as server, sink_for(server, **secured(authority)) as sink:
        server.serve = speak  # type: ignore[method-assign]
        url = server.url(scheme="https", host="hooks.example")
        assert "cannot be reached" in unavailable(await send(sink, url), url)


async def test_tls_of_the_last_century(authority: Authority) -> None:
    old = authority.server("hooks.example")
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with endpoint(answer(200), tls=old) as server, sink_for(server, **secured(authority)) as sink:
        url = server.url(scheme="https", host="hooks.example")
        unavailable(await send(sink, url), url)
        assert server.requests == []


async def test_a_certificate_of_our_own(authority: Authority) -> None:
    tls = authority.server("hooks.example")
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(authority.file)
    cert, key = authority.issue("relay.example")
    async with endpoint(answer(200), tls=tls) as server:
        url = server.url(scheme="https", host="hooks.example")
        async with sink_for(server, **secured(authority)) as sink:
            unavailable(await send(sink, url), url)
        ours = {"cert_file": cert, "key_file": key}
        async with sink_for(server, **secured(authority, **ours)) as sink:
            assert await send(sink, url) == [None]
    assert len(server.requests) == 1


@pytest.mark.parametrize("problem", ["missing", "empty", "password"])
async def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path, problem: str) -> None:
    cert, key = authority.issue("relay.example", password=b"canary")
    (tmp_path / "empty.pem").touch()
    options: dict[str, Any] = {
        "missing": {"ca_file": str(tmp_path / "missing.pem")},
        "empty": {"ca_file": str(tmp_path / "empty.pem")},
        "password": {"cert_file": cert, "key_file": key},
    }[problem]
    with pytest.raises(ConfigError, match="TLS files"):
        await WebhookSink(**options).open()

"""Services in the lifespan of an application: begun, ended, and told of when they do not begin."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar
from litestar.testing import AsyncTestClient
from starlette.applications import Starlette

from relaybox import AsyncOutbox, Event, Listeners, Outbox
from relaybox.contrib import fastapi, litestar, starlette
from relaybox.errors import ConfigError, SchemaMissing


@pytest.fixture
def url(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path}/shop.db"
    with Outbox(address) as box:
        box.migrate()
    return address


class Heard:
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.listeners = Listeners()

        @self.listeners.on("T")
        async def listen(event: Event) -> None:
            self.events.append(event.payload)


async def deliver_one(outbox: AsyncOutbox, delivery: Any) -> None:
    async with outbox.transaction() as tx:
        await outbox.write(tx, Event("T", 1))
    await delivery.drain(timeout=20)


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
async def test_fastapi_and_starlette(url: str, kind: Any) -> None:
    heard, outbox = Heard(), AsyncOutbox(url)
    delivery = outbox.deliver(heard.listeners)
    made = fastapi.lifespan if kind is FastAPI else starlette.lifespan
    app = kind(lifespan=made(outbox, delivery))
    async with app.router.lifespan_context(app):
        await deliver_one(outbox, delivery)
    assert heard.events == [1]
    assert delivery.health().reasons == ("not running",)
    with pytest.raises(Exception, match="closed"):
        outbox.deliver(heard.listeners)


async def test_litestar(url: str) -> None:
    heard, outbox = Heard(), AsyncOutbox(url)
    delivery = outbox.deliver(heard.listeners)
    async with AsyncTestClient(Litestar(lifespan=[litestar.lifespan(outbox, delivery)])):
        await deliver_one(outbox, delivery)
    assert heard.events == [1]
    assert delivery.health().reasons == ("not running",)


async def test_a_lifespan_within_another_begins_after_it_and_ends_before_it(url: str) -> None:
    outbox, seen = AsyncOutbox(url), []
    delivery = outbox.deliver(Heard().listeners)

    @asynccontextmanager
    async def own(app: Any) -> AsyncIterator[dict[str, int]]:
        seen.append((app, delivery.health().level))
        yield {"answer": 42}
        seen.append((app, delivery.health().level))

    async with starlette.lifespan(delivery, inside=own)("the application") as state:
        assert state == {"answer": 42}
        assert delivery.health().level == "ok"
    assert seen == [("the application", "critical")] * 2
    await outbox.close()


async def test_parts_of_every_kind_begin_and_end(url: str) -> None:
    """Synchronous services too, and whatever has a `with`."""
    order: list[str] = []

    @contextmanager
    def plain() -> Any:
        order.append("plain")
        yield
        order.append("plain ends")

    @asynccontextmanager
    async def later() -> Any:
        order.append("later")
        yield
        order.append("later ends")

    outbox, other = Outbox(url), AsyncOutbox(url)
    first, second = outbox.deliver(Heard().listeners), other.deliver(Heard().listeners)
    async with starlette.lifespan(first, second, plain(), later(), outbox, other)(None):
        assert order == ["plain", "later"]
        assert first.health().level == second.health().level == "ok"
    assert order[2:] == ["later ends", "plain ends"]
    assert first.health().reasons == second.health().reasons == ("not running",)


async def test_functions_make_parts_for_each_start(url: str) -> None:
    heard, made = Heard(), []

    async def deliver() -> Any:
        outbox = AsyncOutbox(url)
        made.append((outbox, outbox.deliver(heard.listeners)))
        return made[-1][1]

    life = starlette.lifespan(deliver, lambda: made[-1][0])
    for _ in range(2):
        async with life(None):
            await deliver_one(*made[-1])
    assert heard.events == [1, 1]


async def test_a_service_that_does_not_start_is_named_and_those_before_it_stop(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = AsyncOutbox(url), AsyncOutbox(f"sqlite:///{tmp_path}/new.db", table="unmade")
    first, second = good.deliver(Heard().listeners), bad.deliver(Heard().listeners)
    with caplog.at_level(logging.ERROR, "relaybox"), pytest.raises(SchemaMissing):
        async with starlette.lifespan(good, bad, first, second)(None):
            raise AssertionError("it was started")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("delivery of unmade did not start: SchemaMissing: ")
    assert first.health().reasons == second.health().reasons == ("not running",)


async def test_what_is_no_part_is_refused(url: str) -> None:
    for wrong, text in (
        ("text", "expected a service.*got str"),
        (lambda argument: None, "needs arguments"),
        (Listeners(), "got Listeners"),
    ):
        with pytest.raises(ConfigError, match=text):
            async with starlette.lifespan(wrong)(None):  # type: ignore[arg-type]
                pass

    with pytest.raises(ConfigError, match="expected inside to be a lifespan"):
        async with starlette.lifespan(inside=lambda app: app)(None):
            pass

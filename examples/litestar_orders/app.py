"""Orders over HTTP with Litestar, each with an event in the same transaction."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from litestar import Litestar, get, post
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from relaybox import AsyncOutbox, Event, Listeners
from relaybox.contrib.litestar import lifespan

engine = create_async_engine(os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///shop.db"))
outbox = AsyncOutbox(engine)
listeners = Listeners()


@listeners.on("OrderPlaced")
async def send_mail(event: Event) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text("INSERT INTO mail VALUES (:id, :process)"), {**event.payload, "process": os.getpid()}
        )


@asynccontextmanager
async def database(app: Litestar) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))
        await connection.execute(text("CREATE TABLE IF NOT EXISTS mail (order_id INTEGER, process INTEGER)"))
    await outbox.migrate()
    yield
    await engine.dispose()


@post("/orders/{number:int}")
async def place(number: int) -> dict[str, int]:
    async with engine.begin() as connection:  # COMMIT at the end, ROLLBACK on an error
        await connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
        await outbox.write(connection, Event("OrderPlaced", {"id": number}, key=f"order-{number}"))
    return {"id": number}


@get("/ready")
async def ready() -> dict[str, str]:
    return {"status": "serving"}


app = Litestar([place, ready], lifespan=[database, lifespan(outbox, outbox.deliver(listeners))])

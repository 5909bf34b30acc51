"""Orders over HTTP with Starlette, each with an event in the same transaction."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from relaybox import AsyncOutbox, Event, Listeners
from relaybox.contrib.starlette import lifespan

engine = create_async_engine(os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///shop.db"))
outbox = AsyncOutbox(engine)
listeners = Listeners()


@listeners.on("OrderPlaced")
async def send_mail(event: Event) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text("INSERT INTO mail VALUES (:id, :process)"), {**event.payload, "process": os.getpid()}
        )


delivery = outbox.deliver(listeners)


@asynccontextmanager
async def database(app: Starlette) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))
        await connection.execute(text("CREATE TABLE IF NOT EXISTS mail (order_id INTEGER, process INTEGER)"))
    await outbox.migrate()
    yield
    await engine.dispose()


async def place(request: Request) -> JSONResponse:
    number = int(request.path_params["number"])
    async with engine.begin() as connection:  # COMMIT at the end, ROLLBACK on an error
        await connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
        await outbox.write(connection, Event("OrderPlaced", {"id": number}, key=f"order-{number}"))
    return JSONResponse({"id": number}, status_code=201)


async def ready(request: Request) -> JSONResponse:
    health = delivery.health()
    return JSONResponse({"reasons": health.reasons}, status_code=503 if health.level == "critical" else 200)


app = Starlette(
    routes=[Route("/orders/{number:int}", place, methods=["POST"]), Route("/ready", ready)],
    lifespan=lifespan(outbox, delivery, inside=database),
)

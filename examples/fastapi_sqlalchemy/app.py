"""Orders over HTTP, each with an event in the same transaction."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from relaybox import AsyncOutbox, Event, Listeners
from relaybox.contrib.fastapi import lifespan


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    confirmed: Mapped[bool] = mapped_column(default=False)


class OrderIn(BaseModel):
    item: str


def make_listeners(sessions: async_sessionmaker[AsyncSession]) -> Listeners:
    listeners = Listeners()

    @listeners.on("OrderPlaced")
    async def confirm(event: Event) -> None:
        """Idempotent: confirming twice is confirming once."""
        async with sessions.begin() as session:
            order = await session.get(Order, event.payload["id"])
            if order is not None:
                order.confirmed = True

    return listeners


def create_app(engine: AsyncEngine | None = None, **options: Any) -> FastAPI:
    engine = engine or create_async_engine(os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///shop.db"))
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    outbox = AsyncOutbox(engine, **options)

    @asynccontextmanager
    async def database(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        await outbox.migrate()
        yield
        await engine.dispose()

    delivery = outbox.deliver(make_listeners(sessions))
    app = FastAPI(lifespan=lifespan(outbox, delivery, inside=database))

    @app.post("/orders", status_code=201)
    async def place(wanted: OrderIn) -> dict[str, int]:
        async with sessions.begin() as session:  # COMMIT at the end, ROLLBACK on an error
            order = Order(item=wanted.item)
            session.add(order)
            await session.flush()  # gives the order its number
            await outbox.write(session, Event("OrderPlaced", {"id": order.id}, key=f"order-{order.id}"))
            if wanted.item == "coffee":
                raise HTTPException(409, "we are out of coffee")
        return {"id": order.id}

    @app.get("/orders/{number}")
    async def show(number: int) -> dict[str, Any]:
        async with sessions() as session:
            order = await session.get(Order, number)
        if order is None:
            raise HTTPException(404)
        return {"id": order.id, "item": order.item, "confirmed": order.confirmed}

    return app

"""A shop and its billing, exactly once both ways: `python services.py`. SHOP_URL and BILLING_URL choose databases."""

from __future__ import annotations

import asyncio
import os
import tempfile

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from relaybox import AsyncInbox, AsyncOutbox, AsyncRelay, Event
from relaybox.brokers.inbox import InboxSink


class Service:
    """A database with an outbox, an inbox, and rows of its own."""

    table: str

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.outbox = AsyncOutbox(engine)
        self.inbox = AsyncInbox(engine)

    async def set_up(self) -> None:
        await self.outbox.migrate()
        await self.inbox.migrate()
        async with self.engine.begin() as db:
            await db.execute(text(self.table))

    async def handle(self, event: Event, db: AsyncConnection) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self.outbox.close()
        await self.inbox.close()
        await self.engine.dispose()


class Shop(Service):
    table = "CREATE TABLE orders (number INTEGER PRIMARY KEY, invoice VARCHAR(20))"

    async def place(self, number: int) -> None:
        async with self.engine.begin() as db:
            await db.execute(text("INSERT INTO orders VALUES (:number, NULL)"), {"number": number})
            await self.outbox.write(db, Event("OrderPlaced", {"number": number}, key=f"order-{number}"))

    async def handle(self, event: Event, db: AsyncConnection) -> None:
        await db.execute(text("UPDATE orders SET invoice = :invoice WHERE number = :number"), event.payload)


class Billing(Service):
    table = "CREATE TABLE invoice (invoice VARCHAR(20), number INTEGER)"  # no key: a second effect would be seen

    async def handle(self, event: Event, db: AsyncConnection) -> None:
        """The invoice, word of it and the mark on the message: one transaction."""
        made = {"invoice": f"R-{event.payload['number']}", "number": event.payload["number"]}
        await db.execute(text("INSERT INTO invoice VALUES (:invoice, :number)"), made)
        await self.outbox.write(db, Event("InvoiceMade", made, key=event.key))


async def main(shop_url: str, billing_url: str, orders: int = 3) -> list[tuple[int, str]]:
    shop, billing = Shop(create_async_engine(shop_url)), Billing(create_async_engine(billing_url))
    await asyncio.gather(shop.set_up(), billing.set_up())
    for number in range(1, orders + 1):
        await shop.place(number)

    # Each of these lines would be a process of its own, running all the time.
    await AsyncRelay(shop.outbox, InboxSink(billing.engine, sender="shop"), to="inbox").once()
    await billing.inbox.process(billing.handle, session=billing.engine).once()
    await AsyncRelay(billing.outbox, InboxSink(shop.engine, sender="billing"), to="inbox").once()
    await shop.inbox.process(shop.handle, session=shop.engine).once()

    async with shop.engine.connect() as db:
        answered = [(row.number, row.invoice) for row in await db.execute(text("SELECT * FROM orders ORDER BY number"))]
    await asyncio.gather(shop.close(), billing.close())
    return answered


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        shop_url = os.environ.get("SHOP_URL", f"sqlite+aiosqlite:///{folder}/shop.db")
        billing_url = os.environ.get("BILLING_URL", f"sqlite+aiosqlite:///{folder}/billing.db")
        for number, invoice in asyncio.run(main(shop_url, billing_url)):
            print(f"order {number} has invoice {invoice}")

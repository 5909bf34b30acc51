"""A shop and its billing on two databases: `python service.py`. SHOP_URL and BILLING_URL choose them."""

from __future__ import annotations

import asyncio
import os

from relaybox import AsyncOutbox, Event, Listeners, Settings
from relaybox.errors import DuplicateEvent
from relaybox.types import DeliverySettings


class Shop:
    """Takes orders; its listener asks billing for an invoice."""

    def __init__(self, url: str, billing: Billing) -> None:
        self.billing = billing
        listeners = Listeners()
        listeners.on("OrderPlaced")(self.order_placed)
        self.outbox = AsyncOutbox(url)
        self.delivery = self.outbox.deliver(listeners)

    async def place(self, number: int) -> None:
        async with self.outbox.transaction() as tx:  # your order's INSERT goes here too
            await self.outbox.write(tx, Event("OrderPlaced", {"id": number}, key=f"order-{number}"))

    async def order_placed(self, event: Event) -> None:
        await self.billing.want_invoice(event)


class Billing:
    """Writes invoices, at its own pace."""

    def __init__(self, url: str) -> None:
        listeners = Listeners()
        listeners.on("InvoiceWanted")(self.invoice_wanted)
        self.outbox = AsyncOutbox(url, settings=Settings(delivery=DeliverySettings(workers=1)))
        self.delivery = self.outbox.deliver(listeners)
        self.invoices: asyncio.Queue[str] = asyncio.Queue()

    async def want_invoice(self, cause: Event) -> None:
        """Two databases have no common transaction. The same id for a repeated cause makes the repetition harmless."""
        try:
            async with self.outbox.transaction() as tx:
                await self.outbox.write(tx, Event("InvoiceWanted", cause.payload, key=cause.key, id=cause.id))
        except DuplicateEvent:
            pass

    async def invoice_wanted(self, event: Event) -> None:
        await self.invoices.put(f"invoice for {event.key}")


async def main(shop_url: str, billing_url: str, orders: int = 3) -> list[str]:
    billing = Billing(billing_url)
    shop = Shop(shop_url, billing)
    await asyncio.gather(shop.outbox.migrate(), billing.outbox.migrate())
    async with billing.outbox, shop.outbox, billing.delivery, shop.delivery:
        for number in range(1, orders + 1):
            await shop.place(number)
        async with asyncio.timeout(10):
            return [await billing.invoices.get() for _ in range(orders)]


if __name__ == "__main__":
    shop_url = os.environ.get("SHOP_URL", "sqlite:///shop.db")
    billing_url = os.environ.get("BILLING_URL", "sqlite:///billing.db")
    print("\n".join(asyncio.run(main(shop_url, billing_url))))

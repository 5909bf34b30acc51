"""Fan-out: `python shop.py postgresql://localhost/shop` takes orders, and three readers get them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from relaybox import AsyncOutbox, Event, Retry, Settings, StartFrom, Topic
from relaybox.types import DeliverySettings

SETTINGS = Settings(delivery=DeliverySettings(retry=Retry(base="50ms")))


class Mail:
    """The second order's customer is only found at the second try."""

    def __init__(self, expected: int) -> None:
        self.tries: Counter[str] = Counter()
        self.sent: list[str] = []
        self.expected = expected
        self.all_sent = asyncio.Event()

    async def send(self, event: Event) -> None:
        self.tries[str(event.key)] += 1
        if event.key == "order-2" and self.tries["order-2"] == 1:
            raise LookupError("no address yet")
        self.sent.append(str(event.key))
        if len(self.sent) == self.expected:
            self.all_sent.set()


async def main(url: str, orders: int = 4) -> dict[str, list[str]]:
    outbox = AsyncOutbox(url, settings=SETTINGS)
    await outbox.migrate()
    await outbox.topics.configure(Topic.pub_sub("orders", retention="1d"))
    mail, index = Mail(orders), []

    async with (
        outbox,
        outbox.topics.group("orders", "mail").deliver(mail.send),
        outbox.topics.group("orders", "search").deliver(lambda event: index.append(event.key)) as search,
    ):
        for number in range(1, orders + 1):
            async with outbox.transaction() as tx:  # your INSERT INTO orders goes here too
                await outbox.write(tx, Event("OrderPlaced", {"id": number}, key=f"order-{number}", topic="orders"))
        await asyncio.gather(mail.all_sent.wait(), search.drain())
        report = await read_all(outbox)
    return {"mail": sorted(mail.sent), "search": sorted(index), "report": sorted(report)}


async def read_all(outbox: AsyncOutbox) -> list[str]:
    """A group that comes late and pulls."""
    seen: list[str] = []
    async with outbox.topics.group("orders", "report", start=StartFrom.earliest()).consumer() as consumer:
        while batch := await consumer.poll():
            async with batch:  # commits at the end
                seen += [str(event.key) for event in batch]
    return seen


if __name__ == "__main__":
    for reader, keys in asyncio.run(main(sys.argv[1])).items():
        print(f"{reader}: {', '.join(keys)}")

"""From NATS JetStream into an inbox, by hand: `python inbox_writer_nats.py nats://localhost:4222 sqlite:///billing.db`.

`relaybox ingest` does the same without a program, with outages and malformed messages taken care of. What matters in
either is the order: commit first, acknowledge then. A crash in between brings a message again, and the inbox drops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import nats
from nats.aio.msg import Msg

from relaybox import AsyncInbox, Event


def to_event(message: Msg) -> Event:
    headers = message.headers or {}
    place = message.metadata.sequence.stream  # the same at every redelivery: an id for those that bring none
    return Event(
        headers.get("event_type", message.subject),
        payload_bytes=message.data,
        id=headers.get("event_id", f"{message.metadata.stream}-{place}"),
        key=headers.get("aggregate_id"),
        content_type=headers.get("content-type", "application/json"),
    )


async def write(nats_url: str, inbox: AsyncInbox, subject: str, durable: str = "billing") -> None:
    """Until it is cancelled."""
    async with contextlib.AsyncExitStack() as stack:
        client = await nats.connect(nats_url)
        stack.push_async_callback(client.close)
        subscription = await client.jetstream().pull_subscribe(subject, durable)
        while True:
            try:
                messages = await subscription.fetch(100, timeout=5)
            except nats.errors.TimeoutError:
                continue
            await inbox.accept_all(None, [to_event(each) for each in messages], sender="nats")
            await asyncio.gather(*(each.ack() for each in messages))


async def main(nats_url: str, url: str, subject: str = "orders") -> None:
    inbox = AsyncInbox(url, "orders_inbox")
    await inbox.migrate()
    try:
        await write(nats_url, inbox, subject)
    finally:
        await inbox.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

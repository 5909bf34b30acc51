"""`python outbox_relay.py URL inline|claim-check outbox|group FILE` writes orders and relays them to a file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import asyncpg

from relaybox import AsyncOutbox, AsyncRelay, Event, StartFrom, Topic
from relaybox.brokers.lines import JsonLinesSink

INLINE_LIMIT = 10_000  # bytes; brokers take a megabyte at most, and are happier with less


async def inline(db: asyncpg.Connection, document: str) -> dict[str, Any]:
    return {"document": document}


async def claim_check(db: asyncpg.Connection, document: str) -> dict[str, Any]:
    """What is large is stored aside, in the transaction of the event (with an object store: before it)."""
    if len(document) <= INLINE_LIMIT:
        return await inline(db, document)
    claim = hashlib.sha256(document.encode()).hexdigest()
    await db.execute("INSERT INTO document VALUES ($1, $2) ON CONFLICT DO NOTHING", claim, document)
    return {"claim": claim}


async def redeem(db: asyncpg.Connection, payload: dict[str, Any]) -> str:
    """What a consumer does."""
    if "document" in payload:
        return str(payload["document"])
    return str(await db.fetchval("SELECT body FROM document WHERE claim = $1", payload["claim"]))


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def relay_of(outbox: AsyncOutbox, way: str, file: Path) -> AsyncRelay:
    group = outbox.topics.group("orders", "relay", start=StartFrom.earliest())
    return AsyncRelay(outbox if way == "outbox" else group, JsonLinesSink(path=file), to="orders")


async def main(url: str, form: str, way: str, file: Path) -> dict[str, str]:
    documents = {"order-1": "two teas", "order-2": "a long list: " + "tea, " * 20_000}
    topic = "orders" if way == "group" else None
    packed = claim_check if form == "claim-check" else inline
    db = await asyncpg.connect(url)
    await db.execute("CREATE TABLE IF NOT EXISTS document (claim text PRIMARY KEY, body text)")
    outbox = AsyncOutbox(url)
    await outbox.migrate()
    if topic is not None:
        await outbox.topics.configure(Topic.pub_sub(topic, retention="1d"))
    for key, document in documents.items():
        async with db.transaction():  # your INSERT INTO orders goes here too
            await outbox.write(db, Event("OrderPlaced", await packed(db, document), key=key, topic=topic))

    await relay_of(outbox, way, file).once()  # a process of its own would call run()

    messages = await asyncio.to_thread(read, file)
    received = {message["key"]: await redeem(db, message["data"]) for message in messages}
    await outbox.close()
    await db.close()
    return received


if __name__ == "__main__":
    url, form, way, file = sys.argv[1:]
    for key, document in asyncio.run(main(url, form, way, Path(file))).items():
        print(f"{key}: {len(document)} characters")

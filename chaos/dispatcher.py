"""One delivering process:  python -m chaos.dispatcher URL FOLDER WORKER INCARNATION SEED TTL PLANT

An outbox whose listener appends DELIVER to its own history. It also writes events of its own, so that
rows claimed by their insert are among what a killed process leaves behind.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from relaybox import AsyncOutbox, Delivery, Event, Listeners, Settings
from relaybox.engine.rows.engine import RowEngine
from relaybox.outbox.source import OutboxSource
from relaybox.outcome import Done
from relaybox.types import DeliverySettings

from . import planted
from .load import AsyncpgWriter, Load
from .records import History, Numbers, Op


def instrument(history: History) -> None:
    """Note what this process comes to own and what the database let it settle."""
    claim, settle, offer = OutboxSource.claim, OutboxSource.settle, RowEngine.offer

    def gains(deliveries: Sequence[Delivery]) -> None:
        history.many(
            [
                history.packed(Op.OWN_GAIN, d.event.payload["n"], d.event.payload["k"], d.attempts, d.token)
                for d in deliveries
            ]
        )

    async def noting_claim(self: OutboxSource, *args: Any) -> list[Delivery]:
        claimed = await claim(self, *args)
        gains(claimed)
        return claimed

    async def noting_settle(self: OutboxSource, outcomes: Sequence[Any]) -> int:
        tokens = [(d.event.payload["n"], d.event.payload["k"], d.token) for d, o in outcomes if isinstance(o, Done)]
        lost = await settle(self, outcomes)
        if lost == 0:
            history.many([history.packed(Op.ACK_OK, n, k, aux=token) for n, k, token in tokens])
        return lost

    def noting_offer(self: RowEngine, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        gains(deliveries)
        return offer(self, deliveries)

    OutboxSource.claim = noting_claim  # type: ignore[method-assign]
    OutboxSource.settle = noting_settle  # type: ignore[method-assign]
    RowEngine.offer = noting_offer  # type: ignore[method-assign]


async def main(url: str, folder: Path, worker: int, incarnation: int, seed: int, ttl: float, plant: str) -> None:
    history = History(folder / f"dispatcher-{worker}-{incarnation}.bin", worker, incarnation)
    instrument(history)
    planted.plant(plant)
    chance = random.Random(seed)
    listeners = Listeners()

    async def deliver(event: Event, delivery: Delivery) -> None:
        if chance.random() < 0.1:
            await asyncio.sleep(chance.uniform(0.0, 0.15))
        body = event.payload
        history.note(Op.DELIVER, body["n"], key=body["k"], attempt=delivery.attempts, aux=delivery.token)

    listeners.on("Counted")(deliver)
    settings = Settings(
        delivery=DeliverySettings(workers=16, instance_ttl=timedelta(seconds=ttl), owner=f"d{worker}-{incarnation}")
    )
    driver = "asyncpg" if worker % 2 else "psycopg"
    target = url.replace("://", f"+{driver}://", 1)
    while True:
        box = AsyncOutbox(target, settings=settings)
        try:
            await box.deliver(listeners).start()
            break
        except Exception as error:  # PostgreSQL is restarting
            print(f"dispatcher {worker}: {type(error).__name__}: {error}", file=sys.stderr)
            await asyncio.sleep(0.05)
    history.note(Op.START)
    writer = AsyncpgWriter(url, box, Load(history, Numbers(worker, incarnation), seed))
    while not (folder / "stop").exists():
        try:
            await writer.step()
        except Exception as error:
            print(f"dispatcher {worker}: {type(error).__name__}: {error}", file=sys.stderr)
        await asyncio.sleep(chance.uniform(0.0, 0.06))
    (folder / f"quiet-{worker}-{incarnation}").touch()
    while not (folder / "done").exists():
        await asyncio.sleep(0.05)
    await box.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    _, url, folder, worker, incarnation, seed, ttl, plant = sys.argv
    asyncio.run(main(url, Path(folder), int(worker), int(incarnation), int(seed), float(ttl), plant))

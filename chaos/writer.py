"""One writing process:  python -m chaos.writer URL FOLDER WORKER INCARNATION SEED PAUSE"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from relaybox import AsyncOutbox, Outbox

from .load import AsyncpgWriter, Load, ManualWriter, SessionWriter
from .records import History, Numbers


async def main(url: str, folder: Path, worker: int, incarnation: int, seed: int, pause: float) -> None:
    history = History(folder / f"writer-{worker}-{incarnation}.bin", worker, incarnation)
    load = Load(history, Numbers(worker, incarnation), seed)
    writer: AsyncpgWriter | ManualWriter | SessionWriter
    match worker % 3:
        case 0:
            writer = AsyncpgWriter(url, AsyncOutbox(url), load)
        case 1:
            writer = ManualWriter(Outbox(url), load)
        case _:
            writer = SessionWriter(url, AsyncOutbox(url), load)
    chance = random.Random(seed)
    while not (folder / "stop").exists():
        try:
            await writer.step()
        except Exception as error:  # the database is away, or the connection was cut: the history has it
            print(f"writer {worker}: {type(error).__name__}: {error}", file=sys.stderr)
            await asyncio.sleep(0.02)
        await asyncio.sleep(pause * chance.uniform(0.2, 1.8))


if __name__ == "__main__":
    _, url, folder, worker, incarnation, seed, pause = sys.argv
    asyncio.run(main(url, Path(folder), int(worker), int(incarnation), int(seed), float(pause)))

"""A maintainer in a process of its own:  python -m ga.keeper URL SECONDS;  SECONDS is how long a minute is."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta

from relaybox.maintenance import Maintainer
from relaybox.settings import Settings, TopicSettings


async def keep(url: str, minute: float) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    upkeep = TopicSettings(
        detect_interval=timedelta(seconds=minute),
        cleanup_interval=timedelta(seconds=minute),
        partition_interval=timedelta(seconds=minute),
        thin_interval=timedelta(seconds=minute),
    )
    async with Maintainer(url, settings=Settings(topics=upkeep)):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(keep(sys.argv[1], float(sys.argv[2])))

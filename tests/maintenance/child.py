"""A cleanup in a process of its own:  python -m maintenance.child URL NOW;  RELAYBOX_CRASH arms a fault point."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime, timedelta

from relaybox import AsyncMaintainer, AsyncOutbox
from relaybox.settings import Settings, TopicSettings
from relaybox.testing.crash import arm_from_environment

from .kit import ShiftedClock


async def main(url: str, now: str) -> None:
    arm_from_environment()
    upkeep = TopicSettings(cleanup_batch=20, lock_timeout=timedelta(seconds=1))
    outbox = AsyncOutbox(url, settings=Settings(topics=upkeep), clock=ShiftedClock(datetime.fromisoformat(now)))
    await AsyncMaintainer(outbox, jobs=("partitions", "cleanup")).once()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

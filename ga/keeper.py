"""A maintainer in a process of its own:  python -m ga.keeper URL SECONDS;  SECONDS is how long a minute is."""

from __future__ import annotations

import sys
from datetime import timedelta

from relaybox import Maintainer
from relaybox.settings import Settings, TopicSettings


def keep(url: str, minute: float) -> None:
    upkeep = TopicSettings(
        detect_interval=timedelta(seconds=minute),
        cleanup_interval=timedelta(seconds=minute),
        partition_interval=timedelta(seconds=minute),
        thin_interval=timedelta(seconds=minute),
    )
    Maintainer(url, settings=Settings(topics=upkeep)).run()


if __name__ == "__main__":
    keep(sys.argv[1], float(sys.argv[2]))

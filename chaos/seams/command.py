"""The `relaybox` command in a process that notes when it got no processor:

python -m chaos.seams.command NOTES relay --config FILE
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from pathlib import Path

from .notes import Notes

STALL = 0.6


def look_for_stalls(notes: Notes) -> None:
    """Beside the rest, for ever; ends the process when its trial is gone."""
    trial = os.getppid()
    clock = threading.Event()  # time.sleep() fails under a faked clock
    while os.getppid() == trial:
        before = time.monotonic()
        clock.wait(0.1)
        gap = time.monotonic() - before
        if gap > STALL:
            notes.note("stall", seconds=gap)
    os._exit(1)


def main() -> None:
    _, file, *arguments = sys.argv
    threading.Thread(target=look_for_stalls, args=(Notes(Path(file)),), daemon=True).start()
    sys.argv = ["relaybox", *arguments]
    runpy.run_module("relaybox", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

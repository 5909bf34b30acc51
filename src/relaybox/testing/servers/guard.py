"""A bystander process that cleans up after a test run that died without saying goodbye.

``atexit`` does not run after SIGKILL or an unhandled SIGTERM, and a parent-death signal is Linux only. The
guard holds the reading end of a pipe: the end of input means its parent is gone, whatever the reason.

It reads one line per change: the process group to end (0 for none), or ``closed`` when there is nothing left
to do. It is run as a script, by path, so it must not import anything but the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

GRACE_SECONDS = 3.0


def is_zombie(pid: int) -> bool:
    """Containers often have no init that collects the dead; where there is no /proc we cannot tell."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return False


def end_group(group: int, first: int) -> None:
    """Send the server's own quick-stop signal, then SIGKILL to whatever is left of the group."""
    for number in (first, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            os.killpg(group, number)
            while time.monotonic() < deadline:
                time.sleep(0.02)
                os.killpg(group, 0)
                if is_zombie(group):
                    break
        except ProcessLookupError:
            return


def main(folder: str, quick_stop: int) -> None:
    group = 0
    for line in sys.stdin:
        if line.strip() == "closed":
            return
        group = int(line)
    if group:
        end_group(group, quick_stop)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

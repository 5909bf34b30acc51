"""A receiving service as a process of its own: it can be killed.

python worker.py URL [n]        the handler of the message with this n kills the process
python worker.py URL ordered    goes on for ever, in order
RELAYBOX_CRASH=settle.before:3:kill python worker.py URL
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from inbox.effects import QUICK, say, text_of
from inbox.kit import agreed, processed, serving
from relaybox import Event, Inbox
from relaybox.testing.crash import arm_from_environment
from relaybox.types import Order


def main(url: str, how: str) -> None:
    arm_from_environment()

    def handle(event: Event, connection: Any) -> None:
        say(connection, text_of(event, event.payload["n"]))
        if str(event.payload["n"]) == how:
            os.kill(os.getpid(), signal.SIGKILL)

    if how != "ordered":
        with Inbox(url) as inbox:
            processed(inbox, handle, settings=QUICK)
        return
    with agreed(url, order=Order()) as inbox, serving(inbox, handle, settings=QUICK):
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")

"""moto's server, with a clock that costs less: it asks for the time several times per waiting message and request, and
makes two datetimes each time, so that a queue of a few hundred messages takes it 20 ms per message.

What is visible from now on is visible: moto asks whether that time has passed, and within one tick of the clock takes
a message that was given back for one still being read, whose successors then come before it.
"""

from __future__ import annotations

import time
from typing import Any

from moto.server import main
from moto.sqs import models


def milliseconds() -> float:
    return time.time() * 1000


def quicken() -> None:
    vars(models).update(unix_time=time.time, unix_time_millis=milliseconds)
    message: Any = models.Message
    message.visible = property(lambda self: milliseconds() >= self.visible_at)


if __name__ == "__main__":
    quicken()
    main()

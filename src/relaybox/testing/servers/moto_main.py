"""moto's server, with a clock that costs less: it asks for the time several times per waiting message and request, and
makes two datetimes each time, so that a queue of a few hundred messages takes it 20 ms per message.
"""

from __future__ import annotations

import time

from moto.server import main
from moto.sqs import models

if __name__ == "__main__":
    vars(models).update(unix_time=time.time, unix_time_millis=lambda: time.time() * 1000)
    main()

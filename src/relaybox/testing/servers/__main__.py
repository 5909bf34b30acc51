"""``python -m relaybox.testing.servers``: fetch what neither pip nor a system package brings: Kafka, Debezium."""

from __future__ import annotations

import sys

from .jars import CONNECT, KAFKA
from .process import ServerFailed, ServerUnavailable

try:
    for jars in (KAFKA, CONNECT):
        print(jars.fetch())  # noqa: T201 - the answer to the command
except (ServerFailed, ServerUnavailable) as error:
    sys.exit(str(error))

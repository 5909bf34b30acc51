"""``python -m relaybox.testing.servers``: fetch what neither pip nor a system package brings: Kafka, Debezium."""

from __future__ import annotations

import sys

from .connect_jars import fetch_connect_jars
from .kafka_jars import fetch_jars
from .process import ServerFailed, ServerUnavailable

try:
    for fetch in (fetch_jars, fetch_connect_jars):
        print(fetch())  # noqa: T201 - the answer to the command
except (ServerFailed, ServerUnavailable) as error:
    sys.exit(str(error))

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relaybox.testing.servers import ServerUnavailable, require

from .kafka_behind_gate import KafkaBehindGate


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaBehindGate]:
    try:
        server = KafkaBehindGate()
    except ServerUnavailable:
        require("kafka")
        raise
    with server:
        yield server

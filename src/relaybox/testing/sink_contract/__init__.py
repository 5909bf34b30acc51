"""The sink contract: what every sink must do at its broker, as tests to inherit. Needs pytest-asyncio.

    class TestMine(SinkContract):
        @pytest.fixture
        def harness(self): return MyHarness()

A harness (`harness.py`) makes sinks for one private broker, reads back what arrived with another client library, and
takes the broker away. Tests use destinations of their own, so one broker serves them all.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("harness", "content", "order", "refusal", "outage", "life"))
)

from .content import ContentContract  # noqa: E402
from .harness import CANARY, SECRET, Received, SinkHarness, arrived, deliver, messages, opened, publish  # noqa: E402
from .life import LifeContract  # noqa: E402
from .order import OrderContract  # noqa: E402
from .outage import OutageContract  # noqa: E402
from .refusal import RefusalContract  # noqa: E402

__all__ = [
    "CANARY",
    "SECRET",
    "Received",
    "SinkContract",
    "SinkHarness",
    "arrived",
    "deliver",
    "messages",
    "opened",
    "publish",
]


class SinkContract(ContentContract, OrderContract, RefusalContract, OutageContract, LifeContract):
    """Inherit it as a test class, with a fixture `harness` that gives a SinkHarness."""

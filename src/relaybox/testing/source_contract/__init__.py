"""The source contract: what every source must do at its broker, as tests to inherit. Needs pytest-asyncio.

    class TestMine(SourceContract):
        @pytest.fixture
        def harness(self): return MyHarness()

A harness (`harness.py`) makes sources for one private broker, fills it with relaybox's own sink, and takes it away.
Tests use channels of their own, so one broker serves them all.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("harness", "delivery", "redelivery", "outage", "life", "ingest"))
)

from ..sink_contract import opened  # noqa: E402
from .delivery import DeliveryContract  # noqa: E402
from .harness import SourceHarness, collect, comes_no_more, send  # noqa: E402
from .ingest import IngestContract  # noqa: E402
from .life import LifeContract  # noqa: E402
from .outage import OutageContract  # noqa: E402
from .redelivery import RedeliveryContract  # noqa: E402

__all__ = ["SourceContract", "SourceHarness", "collect", "comes_no_more", "opened", "send"]


class SourceContract(DeliveryContract, RedeliveryContract, OutageContract, IngestContract, LifeContract):
    """Inherit it as a test class, with a fixture `harness` that gives a SourceHarness."""

"""Engines that are stopped at the end of each test, whatever happened in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from scripted_source import MakeEngine, ScriptedSource, make_engine

from relaybox.engine.rows.engine import Handler, RowEngine
from relaybox.testing import Probe


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest_asyncio.fixture
async def start(probe: Probe) -> AsyncIterator[MakeEngine]:
    engines: list[RowEngine] = []

    def started(source: ScriptedSource, handler: Handler, **settings: Any) -> RowEngine:
        engine = make_engine(source, handler, probe, **settings)
        engines.append(engine)
        engine.start()
        return engine

    yield started
    for engine in engines:
        await engine.stop()

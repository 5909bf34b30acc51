"""The pytest plugin: fixtures for tests of code that writes events.

    def test_placing_an_order_publishes(outbox):
        with outbox.transaction() as tx:
            place_order(tx.connection, outbox, 7)
        assert_published(outbox, "OrderPlaced", key="order-7")

`outbox` and `async_outbox` are migrated and empty, on a private SQLite database that lives in memory where the
machine has /dev/shm. A test that also asks for `relaybox_clock` gets an outbox that lives in the clock's time. Override
`relaybox_options` to pass settings, hooks or observers. Loaded by every pytest run where relaybox is installed, so
nothing is imported before a fixture is used.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..outbox import AsyncOutbox, Outbox
    from .clock import ManualClock

MEMORY = Path("/dev/shm")


@pytest.fixture
def relaybox_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a private, empty SQLite database: a file, so that several connections see the same events."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        yield f"sqlite:///{request.getfixturevalue('tmp_path') / 'outbox.db'}"
        return
    folder = tempfile.mkdtemp(prefix="relaybox-", dir=MEMORY)
    try:
        yield f"sqlite:///{folder}/outbox.db"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def relaybox_clock() -> ManualClock:
    """A clock that stands still; `outbox` and `async_outbox` of the same test use it."""
    from .clock import ManualClock

    return ManualClock()


@pytest.fixture
def relaybox_options() -> dict[str, Any]:
    """Keyword arguments for `outbox` and `async_outbox`. Override it in a conftest.py or a test class."""
    return {}


@pytest.fixture
def outbox(request: pytest.FixtureRequest, relaybox_url: str, relaybox_options: dict[str, Any]) -> Iterator[Outbox]:
    """An Outbox with its tables made. Nothing is delivered: see `deliver_pending`, or `outbox.deliver`."""
    from ..outbox import Outbox

    with Outbox(relaybox_url, **_options(request, relaybox_options)) as box:
        box.migrate()
        yield box


@pytest.fixture
def async_outbox(
    request: pytest.FixtureRequest, relaybox_url: str, relaybox_options: dict[str, Any]
) -> Iterator[AsyncOutbox]:
    """The same as an AsyncOutbox. A plain fixture: it works under pytest-asyncio, anyio and without either."""
    from ..outbox import AsyncOutbox, Outbox

    options = _options(request, relaybox_options)
    with Outbox(relaybox_url, **options) as migrating:
        migrating.migrate()
    box = AsyncOutbox(relaybox_url, **options)
    yield box
    loop = asyncio.new_event_loop()  # the test's own loop is gone by now
    try:
        loop.run_until_complete(box.close())
    finally:
        loop.close()


def _options(request: pytest.FixtureRequest, given: dict[str, Any]) -> dict[str, Any]:
    if "relaybox_clock" in request.fixturenames and "clock" not in given:
        return {**given, "clock": request.getfixturevalue("relaybox_clock")}
    return given

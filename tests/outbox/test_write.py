"""Writing through every handle: the event lives and dies with the caller's transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import Box, Probe, happened, make_box, make_database, stored, waiting
from kit.handles import HANDLES, Handle, opened
from relaybox import ConfigError, NoTransaction, RelayboxError
from relaybox.errors import ConnectionLost, StoreError


@pytest.fixture(params=HANDLES, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Handle]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def url(kind: type[Handle], tmp_path: Path) -> str:
    return make_database(kind.engine, tmp_path)


async def settled(box: Box, probe: Probe, handle: Handle) -> None:
    """Deliver one more event, then drain: whatever was to come has come."""
    sentinel = happened(-1)
    await handle.begin()
    await box.write(handle.raw, sentinel)
    await handle.commit()
    await probe.until(probe.has(sentinel.id))
    await box.close()


async def test_commit_delivers_and_rollback_does_not(kind: type[Handle], url: str, probe: Probe) -> None:
    async with make_box("delivery", url, probe, is_async=kind.is_async) as box, opened(kind, url) as handle:
        await handle.begin()
        kept = await box.write(handle.raw, happened(1))
        await handle.execute("INSERT INTO business VALUES (1)")
        await handle.commit()
        await handle.begin()
        lost = await box.write(handle.raw, happened(2))
        await handle.rollback()
        await probe.until(probe.has(kept))
        await settled(box, probe, handle)
    assert probe.count(kept) == 1
    assert probe.count(lost) == 0
    assert stored(url) == 2
    assert waiting(url) == 0


async def test_no_transaction_is_refused(kind: type[Handle], url: str, probe: Probe) -> None:
    box = make_box("plain", url, probe, is_async=kind.is_async)
    async with opened(kind, url, autocommit=True) as handle:
        with pytest.raises(NoTransaction, match="open transaction"):
            await box.write(handle.raw, happened())
    await box.close()
    assert stored(url) == 0


async def test_a_savepoint_rolled_back_takes_its_event_along(kind: type[Handle], url: str, probe: Probe) -> None:
    async with make_box("delivery", url, probe, is_async=kind.is_async) as box, opened(kind, url) as handle:
        await handle.begin()
        kept = await box.write(handle.raw, happened(1))
        await handle.savepoint()
        lost = await box.write(handle.raw, happened(2))
        await handle.rollback_to()
        await handle.commit()
        await probe.until(probe.has(kept))
        await settled(box, probe, handle)
    assert probe.count(lost) == 0
    assert stored(url) == 2


async def test_a_batch_of_a_thousand_keeps_its_order(kind: type[Handle], url: str, probe: Probe) -> None:
    box = make_box("plain", url, probe, is_async=kind.is_async)
    events = [happened(n, key=f"k{n % 7}") for n in range(1_000)]
    async with opened(kind, url) as handle:
        await handle.begin()
        assert await box.write_all(handle.raw, events) == [e.id for e in events]
        await handle.commit()
    await box.close()
    from kit import rows

    assert [r[0] for r in rows(url, "SELECT event_id FROM outbox_event ORDER BY seq")] == [e.id for e in events]
    assert waiting(url) == 1_000


async def test_a_closed_connection_is_one_clear_error(kind: type[Handle], url: str, probe: Probe) -> None:
    box = make_box("plain", url, probe, is_async=kind.is_async)
    handle = kind(url)
    await handle.open()
    await handle.begin()
    await handle.close()
    if kind.orm:
        await box.close()
        pytest.skip("a closed Session opens a new connection by itself")
    with pytest.raises(RelayboxError) as caught:
        await box.write(handle.raw, happened())
    assert isinstance(caught.value, (ConnectionLost, StoreError, NoTransaction))
    words = ("closed", "transaction", "gone away", "released", "connected", "not available")
    assert any(word in str(caught.value) for word in words)
    await box.close()
    assert stored(url) == 0


async def test_a_failed_transaction_that_is_committed_delivers_nothing(
    kind: type[Handle], url: str, probe: Probe
) -> None:
    """PostgreSQL answers COMMIT of a failed transaction with a ROLLBACK and no error."""
    if kind.engine != "postgres":
        pytest.skip("other engines roll back the statement only")
    async with make_box("delivery", url, probe, is_async=kind.is_async) as box, opened(kind, url) as handle:
        await handle.begin()
        ghost = await box.write(handle.raw, happened(1))
        with pytest.raises(Exception):  # noqa: B017 - each library has its own
            await handle.execute("SELECT nonsense")
        with pytest.raises(StoreError):
            await box.write(handle.raw, happened(2))
        try:
            await handle.commit()
        except Exception:
            await handle.rollback()
        await settled(box, probe, handle)
    assert probe.count(ghost) == 0
    assert stored(url) == 1


async def test_a_handle_of_another_database_is_refused(kind: type[Handle], url: str, tmp_path: Path) -> None:
    other = "sqlite" if kind.engine != "sqlite" else "postgres"
    (tmp_path / "other").mkdir()
    box = make_box("plain", make_database(other, tmp_path / "other"), Probe(), is_async=kind.is_async)
    async with opened(kind, url) as handle:
        await handle.begin()
        with pytest.raises(ConfigError, match="this outbox is on"):
            await box.write(handle.raw, happened())
        await handle.rollback()
    await box.close()
    assert stored(url) == 0

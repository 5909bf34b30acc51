"""The pytest plugin, run by pytest in a child process as a user's project would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

# Whether or not relaybox is installed (and its entry point with it), load the plugin exactly once, by module name.
OPTIONS = ("-p", "no:relaybox", "-p", "relaybox.testing.plugin", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def run(pytester: pytest.Pytester, *more: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*OPTIONS, *more)


def test_outbox_is_migrated_private_and_removed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pathlib import Path
        from relaybox import Event
        from relaybox.testing import assert_published
        import pytest

        places = []

        @pytest.mark.parametrize("n", [1, 2])
        def test_write(outbox, relaybox_url, n):
            places.append(Path(relaybox_url.removeprefix("sqlite:///")))
            assert places[-1].exists()
            outbox.verify()
            with outbox.transaction() as tx:
                outbox.write(tx, Event("OrderPlaced", {"n": n}))
            assert_published(outbox, "OrderPlaced", payload={"n": n}, count=1)

        def test_gone():
            assert len(set(places)) == 2
            assert not any(place.parent.exists() for place in places if str(place).startswith("/dev/shm"))
        """
    )
    run(pytester).assert_outcomes(passed=3)


def test_async_outbox_without_any_async_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        from relaybox import Event
        from relaybox.testing import assert_published

        def test_write(async_outbox):
            async def main():
                async with async_outbox.transaction() as tx:
                    await async_outbox.write(tx, Event("A", 1))
                await assert_published(async_outbox, "A", count=1)
            asyncio.run(main())
        """
    )
    run(pytester, "-p", "no:asyncio", "-p", "no:anyio").assert_outcomes(passed=1)


def test_async_outbox_with_pytest_asyncio(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from relaybox import Event
        from relaybox.testing import assert_published

        @pytest.mark.asyncio
        async def test_write(async_outbox):
            async with async_outbox.transaction() as tx:
                await async_outbox.write(tx, Event("A", 1))
            await assert_published(async_outbox, "A", count=1)
        """
    )
    run(pytester, "-W", "error", "-o", "asyncio_default_fixture_loop_scope=function").assert_outcomes(passed=1)


def test_clock_and_options_reach_the_outbox(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from relaybox import Event, Settings
        from relaybox.testing import published
        from relaybox.types import DeliverySettings

        @pytest.fixture
        def relaybox_options():
            return {"settings": Settings(delivery=DeliverySettings(workers=3)), "table": "shop_events"}

        def test_clock(outbox, async_outbox, relaybox_clock):
            assert outbox.settings.delivery.workers == async_outbox.settings.delivery.workers == 3
            relaybox_clock.advance(days=400)
            with outbox.transaction() as tx:
                outbox.write(tx, Event("A", 1))
            assert published(outbox)[0].created_at == relaybox_clock.now()

        def test_system_clock(outbox):
            with outbox.transaction() as tx:
                outbox.write(tx, Event("A", 1))
            assert abs((published(outbox)[0].created_at - published(outbox)[0].occurred_at).total_seconds()) < 60
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_a_failed_assertion_shows_the_events(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from relaybox import Event
        from relaybox.testing import assert_published

        def test_fails(outbox):
            with outbox.transaction() as tx:
                outbox.write(tx, Event("Other", {"secret": "hunter2"}, key="k"))
            assert_published(outbox, "OrderPlaced")
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*expected at least one OrderPlaced event, found 0 among 1 stored events*"])
    result.stdout.fnmatch_lines(["*Other key='k'*"])


def test_falls_back_to_tmp_path(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pathlib import Path
        import relaybox.testing.plugin as plugin
        plugin.MEMORY = Path("/nowhere")

        def test_place(relaybox_url, tmp_path, outbox):
            assert relaybox_url == f"sqlite:///{tmp_path}/outbox.db"
            assert outbox.status().events == 0
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_unused_it_imports_no_driver_and_no_store(tmp_path: Path) -> None:
    code = (
        "import sys, relaybox.testing.plugin, relaybox.testing; "
        "print([m for m in sys.modules if m.startswith(('relaybox.testing.', 'relaybox.drivers.sqlite3', "
        "'relaybox.store.outbox.sqlite', 'pytest_asyncio'))])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert child.stdout.strip() == "['relaybox.testing.plugin']", child.stderr


def test_public_names_resolve() -> None:
    import relaybox.testing

    for name in relaybox.testing.__all__:
        assert getattr(relaybox.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing_here"):
        relaybox.testing.nothing_here  # noqa: B018

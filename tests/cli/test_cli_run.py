"""`relaybox run` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relaybox import Event

from .conftest import Command, write

APP = """
import asyncio, os, sys
from relaybox import AsyncOutbox, Listeners, Outbox

listeners = Listeners()

def say(text):
    os.write(1, f"{text}\\n".encode())  # one write: listeners run in several threads

@listeners.on("Hello")
def hello(event):
    say(f"heard {event.payload}")

@listeners.on("Slow")
async def slow(event):
    say("slow begins")
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    say("slow ends")

@listeners.on("Stuck")
async def stuck(event):
    say("stuck")
    await asyncio.Event().wait()

URL = os.environ["APP_URL"]
plain = Outbox(URL)
box = plain.deliver(listeners)
text = "not an outbox"

def make():
    return AsyncOutbox(URL).deliver(listeners, alone=True)

async def make_later():
    return AsyncOutbox(URL).deliver(listeners, ordered=True)

def wants(argument):
    return box
"""


@pytest.fixture
def shop(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "shop_app.py").write_text(APP)
    monkeypatch.setenv("APP_URL", url)
    return url


@contextmanager
def running(reference: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "relaybox", "run", reference],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], until: str) -> list[str]:
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line.rstrip())
        if until in line:
            return seen
    raise AssertionError(f"{until!r} was never printed: {seen} {process.stderr and process.stderr.read()}")


@pytest.mark.parametrize("reference", ["shop_app:box", "shop_app:make", "shop_app:make_later"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_until_a_signal_and_drains(shop: str, tmp_path: Path, reference: str, number: int) -> None:
    write(shop, Event("Hello", "world"), Event("Slow", None))
    with running(reference) as process:
        seen = lines(process, "slow begins")
        process.send_signal(number)
        seen += lines(process, "relaybox stops")
        (tmp_path / "go").touch()
        seen += lines(process, "relaybox stopped")
        assert process.wait(20) == 0
    assert "relaybox runs delivery of outbox_event" in seen
    assert "heard world" in seen
    assert "slow ends" in seen  # what was under way was finished, not cut


def test_an_outbox_without_settings_has_those_of_the_environment(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that `relaybox config` shows; what the program gives itself stays."""
    (tmp_path / "own_app.py").write_text(
        "import shop_app\n"
        "from relaybox import Outbox, Settings\n"
        "from relaybox.types import DeliverySettings\n"
        "def make():\n"
        "    settings = Settings(delivery=DeliverySettings(batch=7))\n"
        "    own = Outbox(shop_app.URL, settings=settings)\n"
        "    shop_app.say(f'own {own.settings.delivery.workers} {own.settings.delivery.batch}')\n"
        "    box = Outbox(shop_app.URL)\n"
        "    shop_app.say(f'given {box.settings.delivery.workers} {box.settings.delivery.batch}')\n"
        "    return box.deliver(shop_app.listeners)\n"
    )
    (tmp_path / "box.toml").write_text("[relaybox.delivery]\nbatch = 33\n")
    monkeypatch.setenv("RELAYBOX_DELIVERY_WORKERS", "9")
    monkeypatch.setenv("RELAYBOX_CONFIG", "box.toml")
    with running("own_app:make") as process:
        seen = lines(process, "relaybox runs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert seen[:2] == ["own 4 7", "given 9 33"]


def test_a_second_signal_exits_at_once(shop: str) -> None:
    write(shop, Event("Stuck", None))
    with running("shop_app:make") as process:
        lines(process, "stuck")
        process.send_signal(signal.SIGTERM)
        lines(process, "relaybox stops")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM


def test_bad_references_are_told(relaybox: Command, shop: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for reference, text in (
        ("shop_app", "expected MODULE:OBJECT"),
        (":box", "expected MODULE:OBJECT"),
        ("no_such_module:box", "there is no module 'no_such_module'"),
        ("shop_app:nothing", "shop_app has no 'nothing'; it has box"),
        ("shop_app:text", "to be a service, such as outbox.deliver(listeners), got str"),
        ("shop_app:wants", "needs arguments"),
        ("shop_app:plain", "name what its deliver() returns"),
    ):
        assert text in relaybox("run", reference, exit_code=1).stderr
    relaybox("run", "shop_app:box", "--log-level", "loud", exit_code=2)


def test_a_broken_import_keeps_its_own_error(shop: str, tmp_path: Path) -> None:
    (tmp_path / "broken_app.py").write_text("import package_that_is_not_there\n")
    with running("broken_app:box") as process:
        _, errors = process.communicate()
        assert process.returncode == 1
    assert "package_that_is_not_there" in errors


def test_schema_not_migrated(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_URL", "sqlite:///other.db")
    with running("shop_app:box") as process:
        _, errors = process.communicate()
        assert process.returncode == 1
    assert "run `relaybox migrate`" in errors.splitlines()[-1]


ONCE = """
from relaybox import Listeners, Outbox
from relaybox.errors import Reject

listeners = Listeners()

@listeners.on("Fine")
def fine(event): ...

@listeners.on("Bad")
def bad(event):
    raise Reject("never")


box = Outbox(__import__("os").environ["APP_URL"]).deliver(listeners, ordered=True)
"""


@pytest.mark.parametrize(("kinds", "code"), [(["Fine"], 0), (["Fine", "Bad"], 4)])
def test_once_says_by_its_exit_code_whether_something_died(
    shop: str, tmp_path: Path, kinds: list[str], code: int
) -> None:
    (tmp_path / "once_app.py").write_text(ONCE)
    write(shop, *[Event(kind, None, key=kind) for kind in kinds])
    command = [sys.executable, "-m", "relaybox", "run", "once_app:box", "--once", "--json-logs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert f"1 done, 0 failed attempts, {len(kinds) - 1} dead" in done.stdout
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    assert [line["level"] for line in lines if "died at attempt" in line["message"]] == ["error"] * (len(kinds) - 1)


def test_once_that_runs_out_of_time_says_that_something_waits(shop: str) -> None:
    write(shop, Event("Slow", None))
    command = [sys.executable, "-m", "relaybox", "run", "shop_app:box", "--once", "--timeout", "300ms"]
    environment = {**os.environ, "RELAYBOX_DELIVERY_STOP_TIMEOUT": "100ms"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 3, done.stderr
    assert "never retrieved" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_timeout_goes_with_once(relaybox: Command, shop: str) -> None:
    relaybox("run", "shop_app:box", "--timeout", "1s", exit_code=2)

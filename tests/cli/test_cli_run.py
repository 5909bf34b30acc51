"""`relaybox run` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relaybox import Event, Outbox
from relaybox.testing.servers.process import free_port

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
def running(reference: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "relaybox", "run", reference, *options],
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


def test_it_serves_health_and_metrics_where_it_is_told_to(shop: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    with running("shop_app:box", "--listen", address) as process:
        lines(process, "relaybox runs delivery")
        for page, content in (("live", ""), ("ready", "ok"), ("metrics", "python_info")):
            with urllib.request.urlopen(f"http://{address}/{page}", timeout=20) as answer:
                assert answer.status == 200
                assert content in answer.read().decode()


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
    command = [sys.executable, "-m", "relaybox", "run", "once_app:box", "--once", "--log-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    said = [json.loads(line)["message"] for line in done.stdout.splitlines()]
    assert f"delivery of outbox_event: 1 done, 0 failed attempts, {len(kinds) - 1} dead" in said
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    assert [line["level"] for line in lines if "died at attempt" in line["message"]] == ["error"] * (len(kinds) - 1)


LOUD = """
import os, threading, warnings
from relaybox import Listeners, Outbox
from relaybox.observe.logs import LogObserver

def break_off():
    raise RuntimeError("a thread")

def everything(event):
    warnings.warn("an old name")
    thread = threading.Thread(target=break_off, name="helper")
    thread.start()
    thread.join()
    raise ValueError(event.payload)

box = Outbox(os.environ["APP_URL"], observers=[LogObserver()]).deliver(everything)

def broken():
    raise LookupError("no such shelf")
"""
HOSTILE = 'a\n{"level": "error"}\x1b[2J\u2028'


def logged(*arguments: str, exit_code: int, **environment: str) -> list[dict[str, Any]]:
    """Every line of a process is a JSON object, whatever happens."""
    command = [sys.executable, "-m", "relaybox", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
    )
    assert done.returncode == exit_code, done.stderr
    text = done.stdout + done.stderr
    assert text.isascii()
    return [json.loads(line) for line in text.splitlines()]


def test_a_log_in_json_has_an_object_per_line_with_stacks_in_it(shop: str, tmp_path: Path) -> None:
    (tmp_path / "loud_app.py").write_text(LOUD)
    write(shop, Event("T", "secret", id="one"))
    with Outbox(shop) as box, box.transaction() as tx:  # past our checks, as another program would
        tx.connection.execute("UPDATE outbox_event SET event_type = ?", (HOSTILE,))
    environment = {"RELAYBOX_LOG_FORMAT": "json", "RELAYBOX_DELIVERY_RETRY_ATTEMPTS": "1"}
    lines = logged("run", "loud_app:box", "--once", exit_code=4, **environment)
    by_message = {line["message"].split(":")[0].split("(")[0]: line for line in lines}
    assert "relaybox stopped" in by_message
    assert "an old name" in str([line["message"] for line in lines if line["logger"] == "py.warnings"])
    assert "break_off" in by_message["helper ended"]["error"]
    (failed,) = [line for line in lines if "failed at attempt" in line["message"]]
    assert "loud_app.py" in failed["message"]
    assert "secret" not in str(failed)
    assert {line.get("relaybox_fact") for line in lines} >= {"Died"}
    (died,) = [line for line in lines if line.get("relaybox_fact") == "Died"]
    assert (died["level"], died["relaybox_event_id"], died["relaybox_event_type"]) == ("error", "one", HOSTILE)


@pytest.mark.parametrize(
    ("arguments", "level", "text"),
    [
        (("run", "loud_app:broken"), "critical", "the process ends: LookupError"),
        (("run", "loud_app:nothing"), "error", "nothing"),
        (("relay", "--once", "--sink", "nowhere://x"), "error", "unknown kind of sink"),
        (("relay", "--once", "--to", "x", "--sink", "jsonl:out"), "info", "sent 0, died 0, left 0"),
        (("maintain", "--once"), "error", "PostgreSQL"),
        (("ingest", "--from", "nowhere://x"), "error", "unknown kind of source"),
        (("replica", "totals", "--into", "sqlite:///b.db"), "error", "replica"),
    ],
)
def test_every_command_that_runs_a_process_speaks_json(
    shop: str, tmp_path: Path, arguments: tuple[str, ...], level: str, text: str
) -> None:
    (tmp_path / "loud_app.py").write_text(LOUD)
    code = 0 if level == "info" else 1
    (line,) = logged(*arguments, "--log-format", "json", exit_code=code, RELAYBOX_URL=shop)
    assert line["level"] == level
    assert text in line["message"]
    assert ("no such shelf" in line.get("error", "")) == (level == "critical")


def test_a_type_without_a_listener_is_told_with_the_nearest_in_the_log(shop: str) -> None:
    write(shop, Event("Helo", None))
    lines = logged("run", "shop_app:box", "--once", "--log-format", "json", exit_code=4)
    (died,) = [line["message"] for line in lines if "died at attempt" in line["message"]]
    assert died.endswith("no listener for event type 'Helo' of aggregate type '__GLOBAL__'; did you mean 'Hello'?")


def test_every_command_that_serves_pages_has_the_options_of_a_log() -> None:
    from typer.main import get_command

    from relaybox.cli.app import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    names = {name: {option.name for option in command.params} for name, command in commands.items()}
    processes = {name for name, options in names.items() if "listen" in options}
    assert processes == {"run", "relay", "ingest", "replica", "maintain"}
    assert all(names[name] >= {"log_level", "log_format"} for name in processes)


def test_a_log_has_one_of_two_formats(relaybox: Command, shop: str) -> None:
    told = relaybox("run", "shop_app:box", "--log-format", "xml", exit_code=2)
    assert "expected --log-format to be one of text, json, got 'xml'" in " ".join(told.output.split())


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

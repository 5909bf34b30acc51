"""The examples of frameworks under the servers that people run, as processes: several workers, reload, preload, fork.
What is written is delivered once, and after SIGTERM nothing is left: no process, no claim, no sign of life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text
from test_examples import EXAMPLES, postgres_url, run

from kit.conditions import wait_until
from relaybox import Outbox
from relaybox.testing.servers import require
from relaybox.testing.servers.process import free_port

GUNICORN = ("-m", "gunicorn")


class Program:
    """A server with all its processes, which form a group."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        self.said = folder / "said.txt"
        with self.said.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env={**os.environ, **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self.said.read_text(encoding="utf-8")

    def running(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        """Nothing of it is left, and it ended on its own."""
        os.kill(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
            wait_until(lambda: not self.processes(), "end of all processes", patience=10)
        finally:
            self.kill()

    def processes(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        if self.processes():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Shop:
    """An example that serves at a port, with its database."""

    def __init__(self, example: str, folder: Path, url: str = "") -> None:
        self.folder = copytree(EXAMPLES / example, folder / example)
        self.url = url or f"sqlite:///{self.folder}/shop.db"
        self.port = str(free_port())
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)
        self.program: Program | None = None

    def serve(self, *command: str, driver: str = "", ready: str = "/ready", **environment: str) -> None:
        self.program = Program(
            self.folder, *command, DATABASE_URL=self.url.replace("://", f"{driver}://"), **environment
        )
        wait_until(lambda: self.shows(ready), f"{ready} of {command}", pause=0.05)

    def shows(self, page: str, text: str = "") -> bool:
        assert self.program is not None
        assert self.program.running(), self.program.log()
        try:
            answer = self.client.get(page)
        except httpx.TransportError:
            return False
        return answer.status_code < 500 and text in answer.text

    def place(self, *numbers: int) -> None:
        for number in numbers:
            assert self.client.post(f"/orders/{number}").status_code == 201, self.program and self.program.log()

    def mails(self) -> list[tuple[int, int]]:
        """The number of the order, and the process that sent it."""
        engine = create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as connection:
            found = [(row[0], row[1]) for row in connection.execute(text("SELECT * FROM mail ORDER BY order_id"))]
        engine.dispose()
        return found

    def delivered(self, *numbers: int) -> set[int]:
        """By whom; each once."""
        wait_until(lambda: len(self.mails()) >= len(numbers), "mail for each order", pause=0.05)
        self.done()
        assert [number for number, _ in self.mails()] == list(numbers)
        return {process for _, process in self.mails()}

    def done(self) -> None:
        with Outbox(self.url) as box:
            wait_until(lambda: (s := box.status()).due + s.claimed + s.retrying + s.dead == 0, "end of delivery")

    def stop(self) -> None:
        assert self.program is not None
        self.program.terminate()
        with Outbox(self.url) as box:
            assert box.instances() == [], self.program.log()
            assert box.status().claimed == 0

    def close(self) -> None:
        self.client.close()
        if self.program is not None:
            self.program.kill()


@pytest.fixture
def open_shop(tmp_path: Path) -> Iterator[Any]:
    shops: list[Shop] = []

    def opened(example: str, url: str = "") -> Shop:
        shops.append(Shop(example, tmp_path, url))
        return shops[-1]

    yield opened
    for shop in shops:
        shop.close()


def prepared(shop: Shop, *command: str) -> Shop:
    run(
        *command,
        folder=shop.folder,
        environment={"DATABASE_URL": shop.url.replace("postgresql:", "postgresql+psycopg:")},
    )
    return shop


FLASK = ("-m", "flask", "--app", "shop", "prepare")


def test_starlette_in_two_processes_of_uvicorn(open_shop: Any) -> None:
    shop = open_shop("starlette_orders")
    shop.serve("-m", "uvicorn", "app:app", "--workers", "2", "--port", shop.port, driver="+aiosqlite")
    with Outbox(shop.url) as box:
        wait_until(lambda: len(box.instances()) == 2, "two processes that deliver")
    shop.place(*range(1, 21))
    shop.delivered(*range(1, 21))
    shop.stop()


def test_litestar_when_a_file_has_changed(open_shop: Any) -> None:
    """The old process signs off, and the new one goes on."""
    shop = open_shop("litestar_orders")
    shop.serve("-m", "uvicorn", "app:app", "--reload", "--port", shop.port, driver="+aiosqlite")
    shop.place(1)
    (first,) = shop.delivered(1)
    program = shop.folder / "app.py"
    program.write_text(program.read_text().replace('"serving"', '"serving again"'))
    wait_until(lambda: shop.shows("/ready", "serving again"), "the new program")
    with Outbox(shop.url) as box:
        assert len(box.instances()) == 1
    shop.place(2)
    assert len(shop.delivered(1, 2) - {first}) == 1
    shop.stop()


def test_fastapi_in_two_workers_of_gunicorn(open_shop: Any, tmp_path: Path) -> None:
    shop = open_shop("fastapi_sqlalchemy", postgres_url())
    prepare = "from app import *; from sqlalchemy import create_engine as make; import os; "
    prepare += "Base.metadata.create_all(make(os.environ['DATABASE_URL']))"  # what two workers may not do at once
    prepared(shop, "-c", prepare)
    workers = ("-k", "uvicorn_worker.UvicornWorker", "-w", "2", "-b", f"127.0.0.1:{shop.port}")
    shop.serve(*GUNICORN, "--preload", *workers, "app:create_app()", driver="+asyncpg", ready="/docs")
    with Outbox(shop.url) as box:
        wait_until(lambda: len(box.instances()) == 2, "two workers that deliver")
    numbers = [shop.client.post("/orders", json={"item": "tea"}).json()["id"] for _ in range(10)]
    shop.done()
    assert all(shop.client.get(f"/orders/{number}").json()["confirmed"] for number in numbers)
    shop.stop()


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["", "preload"])
def test_flask_in_workers_of_gunicorn(open_shop: Any, options: tuple[str, ...]) -> None:
    shop = prepared(open_shop("flask_gunicorn"), *FLASK)
    shop.serve(*GUNICORN, *options, "-b", f"127.0.0.1:{shop.port}", "shop:app")
    with Outbox(shop.url) as box:
        wait_until(lambda: len(box.instances()) == 2, "two workers that deliver")
    shop.place(*range(1, 11))
    shop.delivered(*range(1, 11))
    shop.stop()


def test_what_delivers_before_the_fork_goes_on_there_and_the_workers_say_so(open_shop: Any) -> None:
    shop = prepared(open_shop("flask_gunicorn", postgres_url()), *FLASK)
    (shop.folder / "early.py").write_text("from shop import *\ndelivery = deliver().start()\n")
    early = ("-c", "/dev/null", "--preload", "-w", "2", "-b", f"127.0.0.1:{shop.port}")
    shop.serve(*GUNICORN, *early, "early:app", driver="+psycopg")
    shop.place(1, 2, 3)
    assert shop.delivered(1, 2, 3) == {shop.program.pid}
    log = shop.program.log()
    assert "this process was forked after delivery of outbox_event had started in its parent" in log
    assert "docs/guides/gunicorn.md" in log
    shop.program.terminate()


def test_a_service_that_does_not_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from starlette.applications import Starlette\n"
        "from relaybox import AsyncOutbox\n"
        "from relaybox.contrib.starlette import lifespan\n"
        "outbox = AsyncOutbox('sqlite:///new.db')\n"
        "app = Starlette(lifespan=lifespan(outbox, outbox.deliver(print)))\n"
    )
    program = Program(tmp_path, "-m", "uvicorn", "app:app", "--port", "0")
    try:
        wait_until(lambda: not program.running(), "end of the server")
    finally:
        program.kill()
    assert "delivery of outbox_event did not start: SchemaMissing" in program.log()
    assert "Application startup failed" in program.log()


def test_celery_writes_delivers_and_is_triggered(open_shop: Any) -> None:
    shop = prepared(open_shop("celery_tasks"), "-c", "import shop; shop.prepare()")
    broker = require("redis").fresh_url()
    environment = {"DATABASE_URL": shop.url, "BROKER_URL": broker}
    shop.program = Program(shop.folder, "-m", "celery", "-A", "shop", "worker", "--concurrency", "2", **environment)
    with Outbox(shop.url) as box:
        wait_until(lambda: len(box.instances()) == 2, "two processes of the pool that deliver")
    place = "import shop; [shop.place_order.delay(number) for number in range(1, 11)]"
    run("-c", place, folder=shop.folder, environment=environment)
    shop.delivered(*range(1, 11))
    shop.stop()

"""Handlers that end the inbox's transaction: their effects and the mark have parted, which is told and not repeated."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import rows
from relaybox import AsyncInbox, Event, Inbox
from relaybox.types import Counts

from .effects import QUICK, asay, effects, rows_or_none, say, text_of, with_effects, writing
from .kit import aprocessed, arrived, inbox_url, pending_ids, processed, serving

# A batch whose lease runs out on a slow machine would be tried message by message.
PATIENT = QUICK.replaced({"delivery.timeout": "20s", "delivery.lease": "60s", "delivery.instance_ttl": "20s"})
# What a handler says, `effect` being its own INSERT; and how often the effect may be there in the end.
WAYS: dict[str, tuple[list[str], int]] = {
    "rolls back and goes on": (["ROLLBACK", "effect"], 1),
    "rolls back, begins and goes on": (["ROLLBACK", "BEGIN", "effect"], 0),
    "rolls back and stops": (["effect", "ROLLBACK"], 0),
}
COMMITS: dict[str, tuple[list[str], int]] = {
    "commits": (["effect", "COMMIT"], 1),
    "commits and goes on": (["COMMIT", "effect"], 1),
}


@pytest.fixture
def home(url: str) -> str:
    return with_effects(url)


@pytest.fixture(params=[False, True], ids=["function", "coroutine"])
def coroutine(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[1, 7], ids=["single", "batch"])
def batch(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def saying(coroutine: bool, lines: list[str], culprit: str, then: Callable[[], None] = lambda: None) -> Any:
    """The culprit says these lines, others write their effect."""

    def texts(event: Event) -> list[str]:
        wanted = lines if event.id == culprit else ["effect"]
        return [text_of(event) if line == "effect" else line for line in wanted]

    def plain(event: Event, handle: Any) -> None:
        for text in texts(event):
            say(handle, text)
        if event.id == culprit:
            then()

    async def awaiting(event: Event, handle: Any) -> None:
        for text in texts(event):
            await asay(handle, text)
        if event.id == culprit:
            then()

    return awaiting if coroutine else plain


async def run(url: str, handler: Any, **options: Any) -> Counts:
    options = {"settings": PATIENT, **options}
    if asyncio.iscoroutinefunction(handler):
        async with AsyncInbox(url) as inbox:
            return await aprocessed(inbox, handler, **options)
    with Inbox(url) as inbox:
        return await asyncio.to_thread(lambda: processed(inbox, handler, **options))


def letters(url: str) -> dict[str, str]:
    found = rows(url, "SELECT m.event_id, d.last_error FROM inbox_dead d JOIN inbox m ON m.seq = d.seq")
    return {event_id: error.partition(":")[0] for event_id, error in found}


@pytest.mark.parametrize("way", WAYS)
async def test_a_handler_that_rolls_back_is_told_and_not_repeated(
    home: str, coroutine: bool, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines, most = WAYS[way]
    with Inbox(home) as inbox:
        inbox.accept_all(None, [arrived(n, id=name) for n, name in enumerate(["good", "bad", "other"])])
    done = await run(home, saying(coroutine, lines, "bad"))
    assert (done.done, done.failed, done.dead) == (2, 0, 1)
    assert letters(home) == {"bad": "TransactionEnded"}
    assert "message bad (OrderPlaced): the handler ended the inbox's transaction" in caplog.text
    found = Counter(effects(home))
    assert found["good"] == found["other"] == 1
    assert found["bad"] <= most
    assert pending_ids(home) == []
    with Inbox(home) as inbox:
        assert inbox.events.replay("bad") == 1
    assert (await run(home, writing(coroutine))).done == 1


@pytest.mark.parametrize("way", COMMITS)
async def test_a_handler_that_commits_is_told_and_not_repeated(
    home: str, coroutine: bool, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark was committed with it: the message is processed."""
    lines, most = COMMITS[way]
    with Inbox(home) as inbox:
        inbox.accept_all(None, [arrived(n, id=name) for n, name in enumerate(["good", "bad", "other"])])
    for _ in range(2):
        await run(home, saying(coroutine, lines, "bad"))
    assert "message bad (OrderPlaced): the handler ended the inbox's transaction" in caplog.text
    assert Counter(effects(home)) == {"good": 1, "other": 1, "bad": most}
    assert pending_ids(home) == []
    with Inbox(home) as inbox:
        assert [found.event.id for found in inbox.events.list(state="done")] == ["good", "bad", "other"]
        assert [(row.pending, row.dead) for row in inbox.stats()] == [(0, 0)]


async def test_a_handler_that_goes_on_after_a_rollback_and_then_raises(home: str, coroutine: bool) -> None:
    def fail() -> None:
        raise ValueError

    with Inbox(home) as inbox:
        inbox.accept(None, arrived(1, id="bad"))
    done = await run(home, saying(coroutine, ["ROLLBACK", "effect"], "bad", fail))
    assert (done.failed, done.dead) == (0, 1)
    assert letters(home) == {"bad": "TransactionEnded"}
    assert effects(home) == ["bad"]


@pytest.mark.parametrize("way", [*WAYS, *COMMITS])
async def test_of_a_batch_nothing_that_ran_is_repeated(home: str, coroutine: bool, way: str) -> None:
    """Nobody can tell which effects of those that ran before it stand. What was not begun is processed."""
    lines, _ = (WAYS | COMMITS)[way]
    names = ["a", "b", "bad", "c", "d"]
    with Inbox(home) as inbox:
        inbox.accept_all(None, [arrived(n, id=name) for n, name in enumerate(names)])
    for _ in range(2):
        await run(home, saying(coroutine, lines, "bad"), batch=7)
    assert max(Counter(effects(home)).values()) == 1
    assert letters(home) == dict.fromkeys(["a", "b", "bad"], "TransactionEnded")
    assert {"c", "d"} <= set(effects(home))
    assert pending_ids(home) == []


async def test_an_error_that_a_handler_swallows_in_a_batch_is_its_own(engine: str, home: str) -> None:
    """On PostgreSQL the transaction cannot go on: it is rolled back to before this message, and no further."""
    if engine != "postgres":
        pytest.skip("elsewhere a failed statement fails alone")

    def handler(event: Event, connection: Any) -> None:
        connection.execute(text_of(event))
        if event.id == "bad":
            try:
                connection.execute("SELECT 1 / 0")
            except Exception:
                return

    with Inbox(home) as inbox:
        inbox.accept_all(None, [arrived(n, id=name) for n, name in enumerate(["a", "bad", "c"])])
    done = await run(home, handler, batch=7, settings=PATIENT.replaced({"delivery.retry.attempts": 1}))
    assert (done.done, done.dead) == (2, 1)
    assert effects(home) == ["a", "c"]


async def test_or_rollback_on_sqlite(tmp_path: Path, coroutine: bool, batch: int) -> None:
    home = with_effects(inbox_url("sqlite", tmp_path))
    rows_or_none(home, "CREATE TABLE once (name text PRIMARY KEY)")
    rows_or_none(home, "INSERT INTO once VALUES ('x')")
    statement = "INSERT OR ROLLBACK INTO once VALUES ('x')"

    def plain(event: Event, handle: Any) -> None:
        try:
            say(handle, statement)
        except Exception:
            say(handle, text_of(event))

    async def awaiting(event: Event, handle: Any) -> None:
        try:
            await asay(handle, statement)
        except Exception:
            await asay(handle, text_of(event))

    with Inbox(home) as inbox:
        inbox.accept(None, arrived(1, id="bad"))
    done = await run(home, awaiting if coroutine else plain, batch=batch)
    assert (done.done, done.failed, done.dead) == (0, 0, 1)
    assert effects(home) == ["bad"]


@pytest.mark.parametrize("repeats", [True, False], ids=["repeated by the handler", "raised"])
async def test_a_deadlock_on_mariadb(tmp_path: Path, batch: int, repeats: bool) -> None:
    """It rolls back everything. A handler that repeats its statements has effects without a mark; one that lets the
    error pass is simply tried again."""
    home = with_effects(inbox_url("mariadb", tmp_path))
    rows(home, "CREATE TABLE account (id int PRIMARY KEY, n int) ENGINE = InnoDB")
    rows(home, "INSERT INTO account VALUES (1, 0), (2, 0)")
    met, tries = threading.Event(), Counter[str]()
    other = Opponent(home)

    def handler(event: Event, connection: Any) -> None:
        tries[event.id] += 1
        say(connection, text_of(event))
        if event.id != "bad" or tries["bad"] > 1:
            return
        say(connection, "UPDATE account SET n = n + 1 WHERE id = 1")
        other.waits_for_the_first()
        try:
            say(connection, "UPDATE account SET n = n + 1 WHERE id = 2")
        except Exception:
            if not repeats:
                raise
            say(connection, text_of(event))
        met.set()

    with Inbox(home) as inbox:
        inbox.accept_all(None, [arrived(n, id=name) for n, name in enumerate(["good", "bad"])])
    try:
        done = await run(home, handler, batch=batch, settings=PATIENT.replaced({"delivery.workers": 1}))
        if not repeats and done.done != 2:
            await again(home, handler)
    finally:
        other.close()
    found = Counter(effects(home))
    assert max(found.values()) == 1
    if repeats:
        assert letters(home)["bad"] == "TransactionEnded"
    else:
        assert letters(home) == {}
        assert found == {"good": 1, "bad": 1}


async def again(url: str, handler: Any) -> None:
    with Inbox(url) as inbox, serving(inbox, handler, settings=PATIENT):
        while inbox.status().pending:
            await asyncio.sleep(0.02)


class Opponent:
    """Holds row 2, then wants row 1 with more to lose: the handler is the victim of the deadlock."""

    def __init__(self, url: str) -> None:
        from relaybox.drivers import open_sync

        self._url = url
        self._database = open_sync(url)
        self._manager = self._database.connection()
        self._connection = self._manager.__enter__()
        self._thread: threading.Thread | None = None
        self._connection.begin()
        say(self._connection.raw, "UPDATE account SET n = n + 1 WHERE id = 2")
        for n in range(200):  # InnoDB sacrifices the transaction that has changed less
            say(self._connection.raw, f"INSERT INTO account VALUES ({n + 10}, 0)")

    def waits_for_the_first(self) -> None:
        def want() -> None:
            say(self._connection.raw, "UPDATE account SET n = n + 1 WHERE id = 1")

        self._thread = threading.Thread(target=want)
        self._thread.start()
        waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        while not rows(self._url, waiting)[0][0]:
            threading.Event().wait(0.12)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(20)
        self._connection.rollback()
        self._manager.__exit__(None, None, None)
        self._database.close()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_session_that_is_ended(engine: str, home: str, ends: str, batch: int) -> None:
    """SQLAlchemy's own commit and rollback, in a transaction that a sessionmaker began."""
    import sqlalchemy as sa
    from sqlalchemy.orm import sessionmaker

    names = {"postgres": "postgresql+psycopg", "mariadb": "mysql+pymysql", "sqlite": "sqlite"}
    made = sa.create_engine(home.replace(home.partition(":")[0], names[engine], 1))

    def handler(event: Event, session: Any) -> None:
        session.execute(sa.text(text_of(event)))
        if event.id == "bad":
            getattr(session, ends)()

    with Inbox(home) as inbox:
        inbox.accept_all(None, [arrived(n, id=name) for n, name in enumerate(["good", "bad"])])
    for _ in range(2):
        await run(home, handler, session=sessionmaker(made), batch=batch)
    made.dispose()
    found = Counter(effects(home))
    assert max(found.values(), default=0) <= 1
    if ends == "rollback" or batch > 1:
        assert letters(home)["bad"] == "TransactionEnded"
    assert pending_ids(home) == []

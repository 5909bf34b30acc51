"""A feed that the real pg_cron refreshes: beside the system's PostgreSQL, which is left as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kit import one, rows, wait_until
from relaybox import Event, Feed, Outbox, StartFrom
from relaybox.testing.servers import PostgresServer, require

MINUTE = 150.0  # pg_cron begins its jobs when the next minute does, and this machine may be busy
ORDERS = {"orders": "customer"}


def package(major: int) -> Path:
    """What is in the package of this machine's Debian release, unpacked into the cache; nothing is installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relaybox" / f"pg_cron-{major}"
    name, apt, dpkg = f"postgresql-{major}-cron", shutil.which("apt-get"), shutil.which("dpkg")
    if not any(cache.glob("*.deb")):
        if apt is None or dpkg is None:
            pytest.skip("pg_cron is taken from a Debian package: there is no apt-get or dpkg here")
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([apt, "download", name], cwd=cache, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"`apt-get download {name}` gets no pg_cron here: {done.stderr.strip()[:200]}")
    if not (cache / "usr").is_dir():
        subprocess.run([str(dpkg), "-x", str(next(cache.glob("*.deb"))), str(cache)], check=True)
    return cache / "usr"


class CronServer(PostgresServer):
    """A copy of the system's programs with pg_cron beside them: a server looks for extensions by its own place."""

    def _copy_unreachable_binaries(self) -> None:
        install, root = self.origin.parent, self.folder / "usr"
        parts = [install.relative_to("/usr"), Path("share", *install.relative_to("/usr/lib").parts)]
        for source in (Path("/usr"), package(self.major)):
            for part in parts:
                shutil.copytree(
                    source / part, root / part, dirs_exist_ok=True, ignore=shutil.ignore_patterns("bitcode", "man")
                )
        for path in (root, *root.rglob("*")):
            self._give(path)
        self._bindir = root / parts[0] / "bin"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    require("postgres-system", durable=False)
    settings = {
        "shared_preload_libraries": "pg_cron",
        "cron.host": "127.0.0.1",
    }
    made = CronServer.from_system(durable=False, settings=settings)
    if not str(made.origin).startswith("/usr/lib/postgresql/"):
        pytest.skip(f"pg_cron is taken from a Debian package, and PostgreSQL here lies in {made.origin}")
    package(made.major)
    with made:
        yield made


@pytest.mark.timeout(300)
def test_pg_cron_refreshes_and_tells_what_failed(server: PostgresServer) -> None:
    url = server.url("postgres")
    with psycopg.connect(url, autocommit=True) as owner, Outbox(url) as box:
        owner.execute("CREATE EXTENSION pg_cron")
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric)")
        owner.execute("CREATE INDEX ON orders (customer)")
        owner.execute("INSERT INTO orders SELECT g, g % 10, g FROM generate_series(1, 100) g")
        box.migrate()
        for name, what in (("totals", "sum(amount)"), ("plain", "count(*)"), ("shares", "sum(1 / (amount - 7))")):
            query = f"SELECT customer, {what} AS n FROM orders GROUP BY customer"
            box.feeds.create(Feed(name, query, key="customer", sources=ORDERS))
            call = (
                "SELECT outbox_event_feed_refresh('plain')"
                if name == "plain"
                else f"CALL outbox_event_feed_run('{name}')"
            )
            owner.execute("SELECT cron.schedule(%s, '* * * * *', %s)", [name, call])
        heard: list[Event] = []
        with box.topics.group("totals", "mirror", start=StartFrom.earliest()).deliver(heard.append):
            ended = "SELECT count(DISTINCT command) FROM cron.job_run_details WHERE status IN ('succeeded', 'failed')"
            wait_until(lambda: one(url, ended) == 3, "job of pg_cron", patience=MINUTE)
            wait_until(lambda: heard)
        found = rows(
            url,
            "SELECT j.jobname, d.status, d.return_message FROM cron.job_run_details d JOIN cron.job j USING (jobid) "
            "WHERE d.runid IN (SELECT min(runid) FROM cron.job_run_details GROUP BY jobid) ORDER BY 1",
        )
        assert [row[:2] for row in found] == [("plain", "succeeded"), ("shares", "failed"), ("totals", "succeeded")]
        assert "feed shares: error 22012" in found[1][2]
        assert one(url, "SELECT count(*) FROM feed_plain") == 10
        assert one(url, "SELECT count(*) FROM feed_totals") == 10
        assert one(url, "SELECT count(*) FROM feed_shares") == 0
        assert box.feeds.status("shares").schedule.failures >= 1
        assert box.feeds.status("totals").schedule.failures == 0
        owner.execute("SELECT cron.unschedule(jobid) FROM cron.job")

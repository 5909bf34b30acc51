"""Real dbt against a private PostgreSQL: the example project is run, fails, and is run again. More: `make dbt`."""

from __future__ import annotations

from kit import one, rows
from kit.dbt import Dbt
from relaybox import Event, Outbox

# The first one leaves dbt's connection outside of a transaction. The second one fails when `gate` says so.
HOOKS = """
models:
  +pre-hook: {sql: SELECT 1, transaction: false}
  +post-hook: SELECT 1 / n FROM public.gate
"""


def read(box: Outbox) -> list[Event]:
    """What the group that dbt has made has not had yet."""
    with box.topics.group("totals", "mirror").consumer() as consumer:
        batch = consumer.poll(100)
        consumer.commit(batch)
        return list(batch)


def test_a_run_its_failure_and_its_rerun(dbt: Dbt) -> None:
    dbt.write("dbt_project.yml", (dbt.project / "dbt_project.yml").read_text() + HOOKS)
    rows(dbt.url, "CREATE TABLE gate AS SELECT 1 AS n")
    with Outbox(dbt.url) as box:
        first = dbt.run("build")
        assert first.success, first
        assert (first.said("totals"), first.said("open_orders")) == ("delta 1, full: +2 -0", "delta 1, full: +3 -0")
        assert first.nodes["unique_totals_customer"][0] == "pass"
        (event,) = read(box)
        assert (event.type, event.headers["feed-n"], len(event.payload["inserted"])) == ("feed.delta", "1", 2)
        before = rows(dbt.url, "SELECT * FROM reports.totals ORDER BY 1")

        rows(dbt.url, "UPDATE orders SET amount = 11 WHERE id = 1; UPDATE gate SET n = 0")
        failed = dbt.run("build")
        assert "division by zero" in failed.said("totals")
        assert rows(dbt.url, "SELECT * FROM reports.totals ORDER BY 1") == before
        status = box.feeds.status("totals")
        assert (status.waiting, status.feed.deltas, read(box)) == (1, 1, [])

        rows(dbt.url, "UPDATE gate SET n = 1")
        again = dbt.run("build")
        assert (again.success, again.said("totals")) == (True, "delta 2, differential: +1 -1")
        (event,) = read(box)
        assert event.payload == {
            "v": 1,
            "inserted": [{"customer": 7, "orders": 2, "total": 31}],
            "deleted": [{"customer": 7, "orders": 2, "total": 30}],
        }
        assert box.feeds.verify("totals").rows == 0
        entries = {(entry.actor, entry.verb, entry.what) for entry in box.audit()}
        assert ("relaybox@dbt", "create", "feed totals") in entries
    assert one(dbt.url, "SELECT obj_description('reports.totals'::regclass)") == "What each customer has ordered."
    assert one(dbt.url, "SELECT value FROM shipments_meta WHERE name = 'order'").startswith('{"start": 1')

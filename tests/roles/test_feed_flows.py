"""Deltas of feeds under the roles that are meant for those who read them, and look after them."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from relaybox import Feed, Maintainer, Outbox, Relay, StartFrom, Topic
from relaybox.errors import FeedError, StoreError

from .kit import Estate

TABLE = "CREATE TABLE priced (id integer PRIMARY KEY); INSERT INTO priced SELECT * FROM generate_series(1, 5)"


@pytest.fixture(scope="module")
def fed(estate: Estate) -> Estate:
    with Outbox(estate.url) as box, psycopg.connect(estate.url, autocommit=True) as owner:
        box.topics.configure(Topic.pub_sub("priced"))
        for role, name in estate.names.items():
            for line in box.grants(role, to=name):  # a topic has tables of its own
                owner.execute(line.encode())
        owner.execute(TABLE.encode())
        box.feeds.create(Feed("priced", "SELECT * FROM priced", key="id", sources={"priced": "id"}, inline_rows=0))
        box.topics.group("priced", "loader", start=StartFrom.earliest()).create()
        box.feeds.refresh(None, "priced")
    return estate


@pytest.mark.parametrize("as_rows", [True, False])
def test_a_relay(fed: Estate, tmp_path: Path, as_rows: bool) -> None:
    """Of a delta whose rows are in chunks."""
    file = tmp_path / "sent.jsonl"
    with Outbox(fed.at("relay")) as box:
        group = box.topics.group("priced", f"broker{as_rows}", start=StartFrom.earliest())
        counts = Relay(group, f"jsonl://{file}", to="x", feed="priced", rows=as_rows).once()
    assert (counts.done, counts.failed, counts.dead) == (1, 0, 0)
    assert len(file.read_text().splitlines()) == (5 if as_rows else 1)


def test_rows_that_are_handed_to_a_job(fed: Estate) -> None:
    with Outbox(fed.at("operator")) as operator:
        assert operator.feeds.hand_off("priced", group="loader", reason="loads are long")
    with Outbox(fed.at("worker")) as worker:
        with pytest.raises(FeedError, match="this role may not"), worker.transaction() as tx:
            worker.feeds.refresh(tx, "priced")
        with pytest.raises(StoreError, match="permission denied"):
            worker.feeds.hand_off("priced", group="loader")
        with worker.topics.group("priced", "loader").consumer() as consumer, consumer.poll() as batch:
            assert len(list(consumer.rows(batch[0]))) == 5
    with psycopg.connect(fed.url, autocommit=True) as owner:
        relation = owner.execute("SELECT relation FROM outbox_event_topic WHERE name = 'priced'").fetchone()
        assert relation is not None
        owner.execute(f"UPDATE {relation[0]} SET created_at = now() - interval '3 days'".encode())
    with Outbox(fed.at("maintainer")) as maintainer, Outbox(fed.url) as box:
        Maintainer(maintainer).once()
        status = box.feeds.status("priced")
        assert (status.kept_deltas, status.claim_checks_pending) == (1, 1)
        with Outbox(fed.at("worker")) as worker:
            assert len(list(worker.feeds.rows_of("priced", 1))) == 5
            assert worker.feeds.rows_consumed("priced", 1, group="loader")
        Maintainer(maintainer).once()
        assert box.feeds.status("priced").kept_deltas == 0
    with Outbox(fed.at("operator")) as operator:
        operator.topics.group("priced", "loader").seek(StartFrom.latest())
    with psycopg.connect(fed.at("reader")) as reader_session:
        assert reader_session.execute("SELECT n FROM outbox_event_feed_latest").fetchall() == [(1,)]

"""A process of the feed trial that refreshes, and says of each refresh whether the table was torn:

    python -m chaos.feed_refresher URL SEED

It prints a line of JSON for each transaction, and ends when its standard input does. The table must equal the query in
the refresh's own snapshot: `watch` wraps the function by which a refresh asks its query, so that it tells what the
whole query says in the snapshot of the statement that calls it.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import Any

import psycopg
from psycopg import sql

from relaybox import Feed, Outbox
from relaybox.errors import CommitUnknown, StoreError

from .feed_shapes import FEEDS

WATCHED = """
ALTER FUNCTION {rows}({types}) RENAME TO {real};
CREATE FUNCTION {rows}({types}) RETURNS SETOF {kept} LANGUAGE plpgsql STABLE AS $$
BEGIN
  PERFORM set_config('judge.said', (SELECT coalesce(md5(string_agg(q::text, ',' ORDER BY q::text COLLATE "C")), '-')
                                    FROM {query} q), true);
  RETURN QUERY SELECT * FROM public.{real}({given});
END $$
"""
KEPT = "SELECT coalesce(md5(string_agg(q::text, ',' ORDER BY q::text COLLATE \"C\")), '-') FROM {} q"


def watch(owner: psycopg.Connection[Any], feed: Feed) -> None:
    found = owner.execute(
        "SELECT f.rows_of, f.query_view, f.relation, oidvectortypes(p.proargtypes), p.pronargs, p.proname "
        "FROM outbox_event_feed f JOIN pg_proc p ON p.oid = to_regproc(f.rows_of) WHERE f.name = %s",
        (feed.name,),
    ).fetchone()
    assert found is not None
    rows, query, kept, types, count, name = found
    given = ", ".join(f"${n + 1}" for n in range(count))
    words = {"rows": rows, "query": query, "kept": kept, "types": types, "real": f"{name}_real", "given": given}
    owner.execute(sql.SQL(WATCHED).format(**{key: sql.SQL(word) for key, word in words.items()}))


def refresh(box: Outbox, tx: Any, feed: Feed, *, full: bool) -> dict[str, Any]:
    """One refresh, and what there is to say of it."""
    raw = tx.connection
    raw.execute("SELECT set_config('judge.said', '', true)")
    done = box.feeds.refresh(tx, feed.name, full=full)
    relation = f"feed_{feed.name}"
    kept = raw.execute(sql.SQL(KEPT).format(sql.Identifier(relation))).fetchone()[0]
    said = raw.execute("SELECT current_setting('judge.said')").fetchone()[0]
    if done.how == "full":
        work = raw.execute(
            "SELECT max(c.relname) FROM pg_class c WHERE c.relnamespace = pg_my_temp_schema() "
            "AND c.relname LIKE 'relaybox\\_' || %s::regclass::oid || '\\_%%\\_new'",
            (f'"{relation}"',),
        ).fetchone()[0]
        said = raw.execute(sql.SQL(KEPT).format(sql.Identifier(work))).fetchone()[0]
    torn = f"{feed.name}: {done}" if said and said != kept else None
    return {"how": done.how if said else "nothing to do", "written": done.delta is not None, "torn": torn}


class _Undone(Exception):
    pass


def _transaction(box: Outbox, chance: random.Random) -> list[dict[str, Any]]:
    done = []
    try:
        with box.transaction() as tx:
            for feed in sorted(chance.sample(FEEDS, chance.choice((1, 1, 2))), key=lambda feed: feed.name):
                done.append(refresh(box, tx, feed, full=chance.random() < 0.02))
            if chance.random() < 0.05:
                raise _Undone
    except (_Undone, StoreError, CommitUnknown, psycopg.OperationalError) as error:
        if isinstance(error, StoreError) and not error.retryable:
            raise
        return [{"how": "rolled back", "written": False, "torn": one["torn"]} for one in done]
    return done


def main(url: str, seed: str) -> None:
    chance, over = random.Random(int(seed)), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with Outbox(url) as box:
        while not over.is_set():
            try:
                print(json.dumps(_transaction(box, chance)), flush=True)
            except Exception as error:
                print(json.dumps([{"error": repr(error)}]), flush=True)
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])

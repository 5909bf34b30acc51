"""A consumer in a process of its own:  python -m guard.child HOW KIND URL [FILE LEASE]

It says `inside` when its effect has happened and before it is marked, then waits for a line on its standard input.

    block    two-phase, the effect is a line in FILE
    mark     the effect is a row, in the transaction of the mark
"""

from __future__ import annotations

import sys
from pathlib import Path

from relaybox import Guard
from relaybox.drivers import open_sync
from relaybox.errors import RelayboxError
from relaybox.op import Query


def pause() -> None:
    print("inside", flush=True)
    sys.stdin.readline()


def block(kind: str, url: str, file: Path, lease: str) -> None:
    guard = (Guard.redis if kind == "redis" else Guard.sql)(url, consumer="email", lease=lease)
    try:
        with guard("message") as first:
            if first:
                with file.open("a") as log:
                    log.write("effect\n")
                pause()
    except RelayboxError as error:
        print(type(error).__name__, flush=True)
    else:
        print("done", flush=True)


def mark(url: str) -> None:
    guard = Guard.sql(url, consumer="email")
    with open_sync(url).connection() as connection:
        connection.begin()
        if guard.mark(connection, "message"):
            connection.execute(Query("effect", "INSERT INTO business VALUES (1)", "count").bind())
        pause()
        connection.commit()
        pause()


if __name__ == "__main__":
    how, kind, url, *rest = sys.argv[1:]
    if how == "block":
        block(kind, url, Path(rest[0]), rest[1])
    else:
        mark(url)

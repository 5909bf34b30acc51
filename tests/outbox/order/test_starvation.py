"""No key starves, neither one late in the round nor one behind keys that are always busy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from relaybox import Event, Settings
from relaybox.drivers import open_sync
from relaybox.store.outbox import open_store
from relaybox.store.outbox.values import KeyChoice
from relaybox.testing.servers import require
from relaybox.types import OrderSettings

from . import world as worlds
from .world import START, Worker, World

KEYS = 10_000
BUSY = 500  # keys that get a new event as soon as one is settled
PER_CLAIM = 200


def url_for(engine: str, folder: Path) -> str:
    if engine == "sqlite":
        return f"sqlite:///{folder / 'starve.db'}"
    return require("mariadb" if engine == "mysql" else "postgres-wheel", durable=False).create_database()


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [
        ("postgres", "shards"),
        ("postgres", "advisory"),
        ("postgres", "rows"),
        ("mysql", "rows"),
        ("sqlite", "shards"),
    ],
)
@pytest.mark.parametrize("held", [False, True])
def test_every_key_is_served_within_one_round(
    engine: str, strategy: str, held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without a held key: shards claim in another way then."""
    monkeypatch.setattr(worlds, "KeyChoice", lambda by, **_: KeyChoice(by, candidates=PER_CLAIM, keys=PER_CLAIM))
    db, store = open_sync(url_for(engine, tmp_path)), open_store(engine)
    db.run(store.migrate())
    world = World(db, store, strategy)  # type: ignore[arg-type]
    worker = Worker("w", Settings(order=OrderSettings(shards=worlds.SHARDS)))
    world.register(worker)
    world.beat(worker)
    if held:
        world.write(["poison"] * 3)
        world.claim(worker, 10)
        world.settle(worker, "poison", "park", worlds.LEASE)
    db.run(store.write([Event("E", None, key=f"k{n}") for n in range(KEYS)], None, START))
    waiting = {f"k{n}" for n in range(KEYS)}
    claims, bound = 0, math.ceil((KEYS + BUSY) / PER_CLAIM) + 5
    while waiting:
        taken = world.claim(worker, PER_CLAIM)
        claims += 1
        assert claims <= bound, f"{len(waiting)} keys still wait"
        waiting -= {each.key for each in taken}
        again = [each.key for each in taken if int(each.key[1:]) < BUSY]
        settle_all(world, worker)
        if again:
            world.write(again)
    db.close()


def settle_all(world: World, worker: Worker) -> None:
    from relaybox.store.outbox.values import Settlement

    held = worker.held
    free = world._leaving(worker, held)
    assert world.run(world.store.settle(Settlement(done=held, ordered=True, free=free), world.now)) == 0
    worker.lanes.clear()

"""Which shards a process wants and which it should let go. Pure: who really owns one is decided by its lease."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..ids import rendezvous
from ..settings import Settings, shard_numbers
from ..store.instances import Instance


class Wish(NamedTuple):
    more: int  # how many to take
    among: Sequence[int] | None  # only these; None: any that is free
    surplus: set[int]  # ours, and better elsewhere


def wish(settings: Settings, mine: Collection[int], peers: Sequence[Instance], me: int, name: str) -> Wish:
    """By `shard_assignment`: a fair share of any, those that this process wins over its peers, or those configured.
    `peers` by age, the oldest first."""
    if settings.order.assignment == "leases":
        share = fair_share(settings.order.shards, [peer.id for peer in peers], me)
        return Wish(share - len(mine), None, set(sorted(mine)[share:]))
    if settings.order.static_shards is not None:
        wanted = set(shard_numbers(settings.order.static_shards, settings.order.shards))
    else:
        everybody = list(dict.fromkeys([*((peer.name, peer.id) for peer in peers), (name, me)]))
        wanted = {shard for shard in range(settings.order.shards) if _winner(shard, everybody) == (name, me)}
    missing = wanted.difference(mine)
    return Wish(len(missing), sorted(missing), set(mine) - wanted)


def _winner(shard: int, processes: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """Chosen by name, so that a process that comes back gets its shards back. Of two with one name the younger: the
    other is most likely what a crash left behind."""
    return max(enumerate(processes), key=lambda aged: (rendezvous(shard, aged[1][0]), aged[0]))[1]


def fair_share(shards: int, instances: list[int], me: int) -> int:
    """How many shards `me` may own: all live instances' shares add up to the whole, the oldest get the odd ones."""
    ranked = list(dict.fromkeys([*instances, me]))
    return math.floor(shards / len(ranked)) + (1 if ranked.index(me) < shards % len(ranked) else 0)

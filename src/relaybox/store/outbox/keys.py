"""Claims that go from key to key: look at the next keys, lease those nobody has, then take their rows.

A key is leased under the token of the claim, and is ours while that claim lives. So a lease is renewed with the claim,
fenced by its token, and free when the claim is settled, expired or taken over. Within a claim the order is fixed: the
lease first, the rows in a later statement, which then sees whatever the former holder of the key left behind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from ...errors import ConfigError
from ...op import Op
from ..claims import Claim
from .store import OutboxStore
from .values import ClaimedRow, KeyChoice, KeyRound

START = -1  # before the first key


def spread(limit: int) -> int:
    """Most rows of one key in a claim that passes over full keys: it looks for others, not for the next long queue."""
    return max(limit // 8, 1)


class WaitingKey(NamedTuple):
    """A key with waiting rows: whether somebody has it, and its first row that may be claimed now, if there is one."""

    key_hash: int
    leased: bool
    head: int | None


class Walk(NamedTuple):
    keys: Sequence[WaitingKey]
    ended: bool  # there are no more
    sharded: bool = False  # somebody delivers by shards


class KeyedOutboxStore(OutboxStore):
    """The round, the same for every dialect that leases keys."""

    def walk(self, after: int, limit: int, now: datetime | None) -> Op[Walk]:
        """The next keys by their hash, each at the price of one probe."""
        raise NotImplementedError

    def lease(
        self,
        claim: Claim,
        keys: Sequence[WaitingKey],
        limit: int,
        choice: KeyChoice,
        refused: Collection[int],
        now: datetime | None,
    ) -> Op[Sequence[int]]:
        """Up to `limit` of these keys, without waiting for anybody, as leased to the claim; in their order. A key
        whose lock was refused before may be waited for."""
        raise NotImplementedError

    def claim_leased(self, claim: Claim, keys: Sequence[int], limit: int, now: datetime | None) -> Op[list[ClaimedRow]]:
        """Their due rows, key by key, up to `limit`. Keys that give nothing are free again."""
        raise NotImplementedError

    def claim_keys(
        self, claim: Claim, limit: int, choice: KeyChoice, turn: KeyRound, now: datetime | None
    ) -> Op[list[ClaimedRow]]:
        """One look at all keys at most: from where the last claim ended to the end, then from the start. While all goes
        smoothly it looks at as many keys as it can take; otherwise at more, to find enough."""
        turn.tried, turn.taken, turn.busy = 0, 0, False
        refused = frozenset(turn.refused)
        most, last_lap = min(choice.keys, limit), turn.after == START
        while limit > 0:
            walk = yield from self.walk(turn.after, most if turn.smooth else choice.candidates, now)
            if walk.sharded:
                raise ConfigError(
                    f"expected all processes to use one order.strategy, got {choice.by!r} here and 'shards' elsewhere: "
                    "stop those first"
                )
            ready = [key for key in walk.keys if key.head is not None]
            free = [key for key in ready if not key.leased]
            leased = (yield from self.lease(claim, free, most, choice, refused, now)) if free else []
            full = len(leased) == most
            if turn.refused or len(leased) < len(free):
                turn.refused.difference_update(key.key_hash for key in free)
                turn.refused.update(() if full else {key.key_hash for key in free}.difference(leased))
            turn.busy |= len(free) < len(ready)
            turn.taken += len(leased)
            turn.tried += 1 + [key.key_hash for key in free].index(leased[-1]) if full else len(free)
            turn.smooth = full or len(leased) == len(walk.keys)
            turn.after = leased[-1] if full else START if walk.ended else walk.keys[-1].key_hash
            if leased and (claimed := (yield from self.claim_leased(claim, leased, limit, now))):
                if len(claimed) >= limit:  # some keys may have given nothing, for lack of room
                    turn.after = max(row.key_hash or 0 for row in claimed)
                return claimed
            if walk.ended and last_lap:
                break
            last_lap |= walk.ended
        return []

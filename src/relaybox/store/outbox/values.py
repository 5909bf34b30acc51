"""What the ops of an outbox are given and return."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ..claims import Death, HeldRow, RetryRow


class ClaimedRow(NamedTuple):
    """A row as claimed: the event's columns, the attempts including this one, and its key where that is leased."""

    row: Sequence[Any]
    attempts: int
    key_hash: int | None = None


class Known(NamedTuple):
    """What a process has claimed: claims of which nothing has left undone, by token, and of the others each event."""

    tokens: Collection[int]
    seqs: Collection[int]


class KeyLease(NamedTuple):
    """A key that is ours while the claim with this token lives."""

    key_hash: int
    token: int


@dataclass(slots=True)
class KeyRound:
    """Where a claimer stands in its round over all keys (a claim moves it on), and what its last claim met."""

    after: int = -1  # the hash of a key; -1 is before the first
    tried: int = 0  # keys it wanted
    taken: int = 0  # and got
    busy: bool = False  # rows wait whose key somebody has
    smooth: bool = False  # every key it looked at was to be had
    refused: set[int] = field(default_factory=set)  # keys that were free, and their locks were not
    # Of claims from shards while keys are passed over. A round meets all of those, what came lately is found at once.
    seen: int | None = None  # up to this event a round has found nothing more, or is to
    lately: bool = False  # the last claim took of what came later
    rests: bool = False  # no round now …
    missed: bool = False  # … though the last claim found nothing else
    went_round: bool = False  # it has met all keys, and taken all there was

    def looks_lately(self, *, full: bool) -> bool:
        """While keys are passed over. By turns with the rest of a round, or that would never come."""
        return self.seen is not None and (self.rests or (full and not self.lately))

    def took_lately(self, some: bool) -> None:
        self.lately, self.missed = some, not some

    def took(self, newest: int | None, *, all_there_was: bool) -> None:
        self.lately, self.missed, self.went_round = False, False, all_there_was
        if self.seen is None or all_there_was:
            self.seen = newest or 0


class KeyChoice(NamedTuple):
    """How `claim_keys` chooses: by which locks, from how many keys at a time, at most how many of them."""

    by: Literal["advisory", "rows"] = "rows"
    candidates: int = 200
    keys: int = 50
    namespace: int = 1


class Settlement(NamedTuple):
    """A batch of outcomes. In ordered delivery `hold` names the heads whose keys must wait, `park` those
    whose keys wait for an operator, and everything settled for good frees its key. `free` are leases of keys
    of which nothing is left in their claim. `whole` are claims of which everything that is left is done, with how
    many events that is: they are not in `done`."""

    done: Sequence[HeldRow] = ()
    retry: Sequence[RetryRow] = ()
    dead: Sequence[Death] = ()
    hold: Sequence[HeldRow] = ()
    park: Sequence[HeldRow] = ()
    ordered: bool = False
    free: Sequence[KeyLease] = ()
    whole: Mapping[int, int] = MappingProxyType({})

    @property
    def several(self) -> bool:
        """Whether a store that can needs more than one statement for it."""
        if self.retry or self.dead or self.free:
            return True
        return bool(self.done) if self.whole else self.ordered


class Purge(NamedTuple):
    """One batch of a purge: rows looked at, where it got to, rows deleted."""

    seen: int
    last: int
    gone: int

"""Running processes of an outbox or an inbox: each has a row with a heartbeat, and who finds an expired one frees what
it had claimed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..errors import ConfigError
from ..op import Op
from .schema import Schema


@dataclass(frozen=True, slots=True)
class Instance:
    """A process that delivers events or processes messages, and is alive."""

    id: int
    name: str
    role: str
    started_at: datetime
    expires_at: datetime
    note: str | None = None  # what people should know of it: the broker it sends to is away, say


class Instances(Schema):
    def register(self, name: str, role: str, ttl: timedelta, now: datetime | None) -> Op[int]:
        if not 0 < len(name) <= 128:
            raise ConfigError(f"expected the owner name to have 1 to 128 characters, got {len(name)}")
        while True:  # by chance, not by counting: after a fail-over that forgot us the next one would get our number
            id, at = 1 + secrets.randbelow(2**31 - 1), self.to_time(now)
            register = self.sql["instance.register"]
            result = yield register.bind(id=id, name=name, role=role, ttl=ttl.total_seconds(), now=at)
            if result.count:
                return id

    def beat(self, instance: int, ttl: timedelta, now: datetime | None) -> Op[bool]:
        result = yield self.sql["instance.beat"].bind(id=instance, ttl=ttl.total_seconds(), now=self.to_time(now))
        return result.count > 0

    def probe_instance(self, instance: int) -> Op[Sequence[Any]]:
        """Locks the row of a process if nobody has: its number, and that of the session."""
        return (yield self.sql["instance.probe"].bind(id=instance)).rows

    def note(self, instance: int, text: str | None) -> Op[None]:
        yield self.sql["instance.note"].bind(id=instance, note=text)

    def instances(self, now: datetime | None) -> Op[list[Instance]]:
        result = yield self.sql["instance.live"].bind(now=self.to_time(now))
        return [
            Instance(row[0], row[1], row[2], self.from_time(row[3]), self.from_time(row[4]), row[5])
            for row in result.rows
        ]

    def retire(self, instance: int, now: datetime | None) -> Op[int]:
        """Sign off: whatever is still claimed under this instance is free at once. How many rows that were."""
        yield self.sql["instance.leave"].bind(id=instance)
        return (yield from self.free_claims([instance], now))

    def take_over(self, me: int | None, now: datetime | None, *, alone: bool = False) -> Op[tuple[int, int]]:
        """How many others have died, and how many rows are free for that. To who is `alone` everybody else is dead."""
        owners = yield from self.remove_dead(me, now, alone=alone)
        return len(owners), (yield from self.free_claims(owners, now)) if owners else 0

    def remove_dead(self, me: int | None, now: datetime | None, *, alone: bool = False) -> Op[list[int]]:
        gone = yield self.sql["instance.expired"].bind(me=me, alone=alone, now=self.to_time(now))
        owners = [row[0] for row in gone.rows]
        if owners and not self.capabilities.single_statement:
            yield self.sql["instance.remove"].bind(owners=self.numbers(owners))
        return owners

    def free_claims(self, owners: Sequence[int], now: datetime | None) -> Op[int]:
        """What these had claimed is due again."""
        raise NotImplementedError

    def notify(self, now: datetime | None) -> Op[bool]:
        """Wake others, where `capabilities.listen`. False: nobody is there to hear it."""
        if not self.capabilities.listen:
            return False
        return bool((yield self.sql["instance.notify"].bind(now=self.to_time(now))).rows)

"""Messages that come in: each is stored once. What cannot be read becomes a dead letter at once, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

from ...errors import ConfigError
from ...event import Event
from ...op import Op
from ..event_rows import chunks, cut
from .operate import InboxOperate

K = TypeVar("K")
ANYBODY: Final = "*"  # the sender of ids that were kept without one: a duplicate from any sender


class InboxAccepts(InboxOperate):
    def accept(self, events: Sequence[Event], sender: str, now: datetime | None) -> Op[list[bool]]:
        """Store what was not seen before, in list order; of each event whether that was so. Needs a transaction.

        Another transaction that has accepted the same id of this sender and not ended is waited for.
        """
        answers: list[bool] = []
        for chunk in chunks(events):
            distinct: dict[str, Event] = {}
            for event in chunk:
                distinct.setdefault(event.id, event)
            new = yield from self.insert(list(distinct.values()), sender, now)
            answers += told([event.id for event in chunk], new)
        return answers

    def accept_one(self, event: Event, sender: str, now: datetime | None) -> Op[list[bool]]:
        """The same as `accept` by that statement, where `single`."""
        raise NotImplementedError

    def accept_together(self, events: Sequence[Event], senders: Sequence[str], now: datetime | None) -> Op[list[bool]]:
        """`accept` for messages of several callers, where `single`. Nobody is waited for: rather none is accepted, and
        StoreBusy raised."""
        raise NotImplementedError

    def insert(self, events: Sequence[Event], sender: str, now: datetime | None) -> Op[set[str]]:
        """One chunk of distinct events. Returns the ids that were new."""
        return self.insert_new(events, sender, now)

    def insert_new(self, events: Sequence[Event], sender: str, now: datetime | None) -> Op[set[str]]:
        """Inserts into tables of ours. Returns the ids that were new."""
        raise NotImplementedError

    def read_only(self) -> Op[bool]:
        """Whether nothing can be accepted here, as on a standby."""
        result = yield self.sql["inbox.status.read_only"].bind()
        return bool(result.rows[0][0])

    def accept_or_bury(
        self, events: Sequence[Event], letters: Mapping[str, str], sender: str, now: datetime | None
    ) -> Op[list[bool]]:
        """Accept all. What is new of those whose ids are in `letters` is a dead letter from the start, with that
        reason."""
        answers = yield from self.accept(events, sender, now)
        if buried := [e.id for e, new in zip(events, answers, strict=True) if new and e.id in letters]:
            found = yield self.sql["inbox.bury.find"].bind(event_ids=self.texts(buried), sender=self.exact(sender))
            yield from self.give_up({seq: cut(letters[event_id]) for event_id, seq in found.rows}, now)
        return answers


def told(keys: Sequence[K], new: set[K]) -> list[bool]:
    """Of each message, by its key, whether it was new; of the same twice, the first."""
    answers = []
    for key in keys:
        answers.append(key in new)
        new.discard(key)
    return answers


def check_sender(sender: str) -> str:
    """Who sent a message, as its receiver calls it. Empty: nobody was named."""
    if not isinstance(sender, str) or len(sender) > 255 or not sender.isprintable() or sender != sender.strip():
        raise ConfigError(
            "expected sender to be at most 255 printable characters without blanks around them, got "
            f"{str(sender)[:40]!r}"
        )
    if sender == ANYBODY:
        raise ConfigError(f"{ANYBODY!r} stands for every sender; name one, or leave sender out")
    return sender

"""Messages that nobody can read become dead letters as they are accepted: kept with the reason, and in nobody's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ...event import Event
from ...op import Op
from ..rows import cut
from .operate import InboxOperate


class InboxBury(InboxOperate):
    def accept(self, events: Sequence[Event], source: str | None, now: datetime | None) -> Op[list[bool]]:
        raise NotImplementedError

    def accept_or_bury(
        self, events: Sequence[Event], letters: Mapping[str, str], source: str | None, now: datetime | None
    ) -> Op[list[bool]]:
        """Accept all. What is new of those whose ids are in `letters` is a dead letter from the start, with that
        reason."""
        answers = yield from self.accept(events, source, now)
        if buried := [e.id for e, new in zip(events, answers, strict=True) if new and e.id in letters]:
            found = yield self.sql["inbox.bury.find"].bind(event_ids=self.texts(buried))
            rows = sorted((seq, cut(letters[event_id])) for event_id, seq in found.rows)
            yield self.sql["inbox.settle.dead"].bind(**self.table(rows, "seqs", "errors"), now=self.to_time(now))
            seqs = [seq for seq, _ in rows]
            yield from self.journal_dead(seqs, pending=-1, dead=1)
            yield self.sql["inbox.settle.forget"].bind(seqs=self.numbers(seqs))
        return answers

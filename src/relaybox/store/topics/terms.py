"""Who may do a job that only one should do at a time, by the database's clock."""

from __future__ import annotations

from datetime import datetime, timedelta

from ...errors import LeaseLost
from ...op import Op
from .logs import LogQueries
from .maintenance import Term


class TermOps(LogQueries):
    def acquire_term(self, job: str, owner: str, ttl: timedelta, now: datetime | None) -> Op[Term | None]:
        """Take or prolong. None: another holds it."""
        found = yield self.sql["topic.term.acquire"].bind(job=job, owner=owner, ttl=ttl, now=now)
        return Term(job, owner, int(found.rows[0][0])) if found.rows else None

    def hold_term(self, term: Term, now: datetime | None) -> Op[None]:
        """First in every transaction of the job; raises LeaseLost. Needs a transaction."""
        held = yield self.sql["topic.term.hold"].bind(job=term.job, owner=term.owner, term=term.number, now=now)
        if not held.rows:
            raise term_lost(term.job)

    def maintained(self, now: datetime | None) -> Op[bool]:
        """Whether somebody holds the term for the maintenance, or has held it within the last hour (cron)."""
        found = yield self.sql["topic.term.recent"].bind(job="maintenance", now=now)
        return bool(found.rows)

    def release_term(self, term: Term, now: datetime | None) -> Op[None]:
        yield self.sql["topic.term.release"].bind(job=term.job, owner=term.owner, term=term.number, now=now)


def term_lost(job: str) -> LeaseLost:
    return LeaseLost(f"the term for {job!r} has ended: another process does this job now; nothing to do here")

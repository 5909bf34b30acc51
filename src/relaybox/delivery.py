"""One event on its way to a listener."""

from __future__ import annotations

from .event import Event


class Delivery:
    """One event in this process, with the claim that entitles the process to it. Listeners may look at `event`,
    `attempts` (this one included) and `ordered`."""

    __slots__ = ("attempts", "event", "hot", "lane", "lease_end", "ordered", "seq", "token")

    def __init__(
        self,
        event: Event,
        seq: int,
        token: int,
        attempts: int,
        lease_end: float,
        hot: bool,
        ordered: bool = False,
    ) -> None:
        self.event = event
        self.seq = seq
        self.token = token
        self.attempts = attempts
        self.lease_end = lease_end  # on the clock's monotonic time
        self.hot = hot
        self.ordered = ordered
        self.lane: str | None = event.key if ordered else None

    @property
    def source(self) -> str:
        """HOT: handed over in the process that wrote it. COLD: found by polling."""
        return "HOT" if self.hot else "COLD"

    def __repr__(self) -> str:
        return f"Delivery({self.event!r}, attempt {self.attempts}, {self.source})"

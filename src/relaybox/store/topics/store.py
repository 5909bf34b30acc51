"""Topics on PostgreSQL: one class made of mixins, a file per subject."""

from __future__ import annotations

from . import TopicTables
from .backfill import BackfillOps
from .cleanup import CleanupOps
from .incarnation import IncarnationOps
from .measures import MeasureOps
from .members import MemberOps
from .moves import MoveOps
from .positions import PositionOps
from .terms import TermOps
from .watch import WatchOps
from .write import WriteOps


class TopicStore(
    MoveOps,
    IncarnationOps,
    WriteOps,
    PositionOps,
    MemberOps,
    MeasureOps,
    BackfillOps,
    CleanupOps,
    TermOps,
    WatchOps,
):
    def __init__(self, tables: TopicTables | None = None) -> None:
        super().__init__(tables or TopicTables())

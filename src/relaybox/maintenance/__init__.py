"""Keeping topics in order: ticks, partitions, cleanup, dead groups, alerts.

    Maintainer("postgresql://localhost/shop").run()

Any number may run; one of them works, and another takes over within seconds when it is gone. `relaybox maintain` is
this, as a process.
"""

from .erasure import Erasure, erase
from .maintainer import ALL_JOBS, AsyncMaintainer, Maintainer
from .repair import repair
from .report import Report
from .suggestions import Survey, survey

__all__ = ["ALL_JOBS", "AsyncMaintainer", "Erasure", "Maintainer", "Report", "Survey", "erase", "repair", "survey"]

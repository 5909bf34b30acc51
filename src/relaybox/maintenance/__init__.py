"""Keeping topics in order: ticks, partitions, cleanup, dead groups, alerts.

    async with Maintainer("postgresql://localhost/shop"):
        await asyncio.Event().wait()

Any number may run; one of them works, and another takes over within seconds when it is gone. `relaybox maintain` is
this, as a process.
"""

from .maintainer import JOBS, Maintainer
from .repair import repair
from .report import Report
from .survey import Survey, survey

__all__ = ["JOBS", "Maintainer", "Report", "Survey", "repair", "survey"]

"""What every test run needs, wherever it was started from."""

from __future__ import annotations

import os
import signal

from relaybox.testing.servers.process import MEMORY, roomy

# A shell ignores these two for what it starts in the background, and every child inherits that: programs under test
# that are stopped by them would run on.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# SQLite waits for the disk at each commit. Where there is room in memory, `tmp_path` lies there.
if roomy(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

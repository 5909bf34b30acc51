"""What every test run needs, wherever it was started from."""

from __future__ import annotations

import signal

# A shell ignores these two for what it starts in the background, and every child inherits that: programs under test
# that are stopped by them would run on.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

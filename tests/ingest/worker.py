"""`relaybox` as a process that can be told to kill itself: RELAYBOX_CRASH=write.committed:2:kill worker.py ingest …"""

from __future__ import annotations

from relaybox.cli.app import app
from relaybox.testing.crash import arm_from_environment

if __name__ == "__main__":
    arm_from_environment()
    app()

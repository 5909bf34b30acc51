"""Relays of feeds are tested with the harnesses of brokers, and with the scripted sink."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("brokers", "relay"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))

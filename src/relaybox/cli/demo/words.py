"""What the programs of the demo say to its stage and hear from it: a line of JSON each, over their standard streams."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()


def say(word: str, **about: Any) -> None:
    with _lock:  # observers are called in several threads
        sys.stdout.write(json.dumps({"word": word, **about}) + "\n")
        sys.stdout.flush()


def heard() -> Iterator[dict[str, Any]]:
    """Until the stage is gone, however it went."""
    for line in sys.stdin:
        yield json.loads(line)

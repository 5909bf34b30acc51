"""For processes that do little but deliver: keep the garbage collector out of the way."""

from __future__ import annotations

import gc

YOUNG = 100_000  # objects: more than the events that are in hand, so that most are gone before anybody looks at them


def settle_in() -> None:
    """Call it when the process is set up and its groups or listeners run. What is here now stays, and is not looked
    through again; what comes is events, which go by themselves. Cycles are collected, only less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])

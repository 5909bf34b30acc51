"""For processes that do little but deliver: keep the garbage collector out of the way (`delivery.freeze_gc`)."""

from __future__ import annotations

import gc

YOUNG = 100_000  # objects: more than the events that are in hand, so that most are gone before anybody looks at them


def freeze_gc() -> None:
    """When the process is set up and delivery starts. What is here now stays, and is not looked through again; what
    comes is events, which go by themselves. Cycles are collected, only less often. Once is enough for all services."""
    if gc.get_threshold()[0] == YOUNG:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])

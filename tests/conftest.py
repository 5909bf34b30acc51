"""What every test of this folder has: properties are not judged by the speed of a busy machine."""

from __future__ import annotations

import gc

from hypothesis import settings

settings.register_profile("relaybox", deadline=None)
settings.load_profile("relaybox")


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: no collection of garbage has to look at them again."""
    gc.collect()
    gc.freeze()

"""What every test of this folder has: properties are not judged by the speed of a busy machine."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

if os.environ.get("TEST_ROLES"):
    from kit.as_roles import (  # noqa: F401
        pytest_collection_modifyitems,
        pytest_report_header,
        pytest_terminal_summary,
    )

settings.register_profile("relaybox", deadline=None)
settings.load_profile("relaybox")


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: no collection of garbage has to look at them again."""
    gc.collect()
    gc.freeze()

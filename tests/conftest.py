"""What every test of this folder has: properties are not judged by the speed of a busy machine."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

from kit import as_roles

if os.environ.get(as_roles.SWITCH):
    as_roles.install()
    pytest_collection_modifyitems = as_roles.pytest_collection_modifyitems
    pytest_report_header = as_roles.pytest_report_header
    pytest_terminal_summary = as_roles.pytest_terminal_summary

settings.register_profile("relaybox", deadline=None)
settings.load_profile("relaybox")


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: no collection of garbage has to look at them again."""
    gc.collect()
    gc.freeze()

"""The short form of `python -m fuzz`."""

from __future__ import annotations

import pytest
from fuzz.__main__ import TARGETS, run


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_escapes_but_the_declared_errors(target: str) -> None:
    run(target, 0, 1_000)

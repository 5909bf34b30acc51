"""Another Django than that of this environment, for tests that name a version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def older_django(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with Django 4.2: TEST_DJANGO names one, else it is installed from where pip finds packages."""
    if named := os.environ.get("TEST_DJANGO"):
        return named
    folder: Path = tmp_path_factory.mktemp("django")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "django==4.2.*"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if result.returncode:
        pytest.skip(f"Django 4.2 cannot be installed here: {result.stderr.strip().splitlines()[-1]}")
    return str(folder)

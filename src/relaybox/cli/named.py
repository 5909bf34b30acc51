"""What a user names as MODULE:OBJECT."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from ..errors import ConfigError
from ..service import AsyncService, Service
from ..words import did_you_mean


def load_object(reference: str) -> Any:
    """The object a reference names, with the current folder importable as `python -m` would have it."""
    module_name, _, path = reference.partition(":")
    if not module_name or not path:
        raise ConfigError(f"expected MODULE:OBJECT such as shop.events:delivery, got {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something it imports is not, and its traceback says where
        raise ConfigError(f"there is no module {module_name!r} here or on the Python path") from None
    for name in path.split("."):
        if not hasattr(found, name):
            inside = getattr(found, "__dict__", {}).items()
            names = ", ".join(n for n, value in inside if isinstance(value, Service | AsyncService))
            hint = f"; it has {names}" if names else ""
            hint = did_you_mean(name, [each for each, _ in inside], hint)
            raise ConfigError(f"{module_name} has no {path!r}{hint}")
        found = getattr(found, name)
    return found

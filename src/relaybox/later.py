"""Names of a module that are imported when somebody asks for them: most programs write events and start no relay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def later(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module: which name is found in which module."""

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = getattr(import_module(f"relaybox.{places[name]}"), name)
        setattr(sys.modules[module], name, found)
        return found

    return find

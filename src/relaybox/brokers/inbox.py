"""An inbox in the database of another service, as a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..later import later

if TYPE_CHECKING:
    from ..relay.inbox_sink import InboxSink
else:  # hidden from type checkers, to which a module with __getattr__ has every name
    __getattr__ = later(__name__, {"InboxSink": "relay.inbox_sink"})

__all__ = ["InboxSink"]

"""The inbox, its receiving half: every message is accepted once. Processing what was accepted is not here yet."""

from .inbox import AsyncInbox, Inbox

__all__ = ["AsyncInbox", "Inbox"]

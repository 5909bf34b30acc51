"""JSON lines, into a file or the standard output."""

from __future__ import annotations

from .sink import JsonLinesSink

__all__ = ["JsonLinesSink"]

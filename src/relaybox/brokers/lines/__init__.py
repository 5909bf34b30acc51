"""JSON lines, into a file or the standard output."""

from .sink import JsonLinesSink

__all__ = ["JsonLinesSink"]

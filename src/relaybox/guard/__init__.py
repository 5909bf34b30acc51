"""Handling a message once, however often it is delivered: marks in Redis or in the consumer's own database."""

from .guard import AsyncGuard, Guard

__all__ = ["AsyncGuard", "Guard"]

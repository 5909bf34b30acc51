"""Ingest: messages of a broker or of webhooks into an inbox, acknowledged when they are stored."""

from .ingest import AsyncIngest, Ingest

__all__ = ["AsyncIngest", "Ingest"]

"""Delivery row by row: the outbox and the inbox."""

"""Tables in other databases that follow a feed: by its deltas, or straight from its database."""

from .replica import AsyncReplica, Replica

__all__ = ["AsyncReplica", "Replica"]

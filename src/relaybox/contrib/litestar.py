"""Litestar: services that work as long as the application.

app = Litestar(lifespan=[lifespan(outbox, outbox.deliver(listeners))])
"""

from .asgi import lifespan

__all__ = ["lifespan"]

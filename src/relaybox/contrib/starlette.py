"""Starlette: services that work as long as the application.

app = Starlette(lifespan=lifespan(outbox, outbox.deliver(listeners)))
"""

from .asgi import lifespan

__all__ = ["lifespan"]

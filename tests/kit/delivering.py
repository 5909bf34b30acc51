"""An outbox that delivers while its `with` or `async with` block is open."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from relaybox import AsyncOutbox, Listeners, Outbox

B = TypeVar("B", Outbox, AsyncOutbox)
WAYS: dict[str, dict[str, bool]] = {"delivery": {}, "ordered": {"ordered": True}, "alone": {"alone": True}}


class delivering(Generic[B]):
    def __init__(
        self,
        kind: type[B],
        target: Any,
        listeners: Listeners,
        *,
        ordered: bool = False,
        alone: bool = False,
        migrate: bool = False,
        **options: Any,
    ) -> None:
        self.box: B = kind(target, **options)
        self.service: Any = self.box.deliver(listeners, ordered=ordered, alone=alone)
        self._migrate = migrate

    def __enter__(self) -> B:
        if self._migrate:
            self.box.migrate()
        try:
            self.service.start()
        except BaseException:
            self.__exit__()
            raise
        return self.box

    def __exit__(self, *exc: object) -> None:
        self.box.close()

    async def __aenter__(self) -> B:
        if self._migrate:
            await self.box.migrate()
        try:
            await self.service.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self.box

    async def __aexit__(self, *exc: object) -> None:
        await self.box.close()


def migrated(url: str) -> Outbox:
    """An outbox with its tables made."""
    box = Outbox(url)
    box.migrate()
    return box

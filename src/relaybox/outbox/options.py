"""What an outbox can be given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ..clock import Clock
from ..codec import Codec
from ..contracts import Contracts
from ..facts import Observer
from ..settings import Settings
from .deliver import Interceptor
from .write import WriterHook


class Options(TypedDict, total=False):
    table: str  # the event table; the others are named after it
    schema: str | None
    settings: Settings | None  # none: what the environment and RELAYBOX_CONFIG say
    hook: WriterHook | None
    observers: Sequence[Observer]
    migrate: bool  # create or upgrade the tables when the `with` block is entered
    clock: Clock
    codec: Codec
    contracts: Contracts | None  # write() refuses events that do not keep theirs


class NodeOptions(Options, total=False):
    interceptors: Sequence[Interceptor]

"""Which function is called for an event: one registry for outboxes, groups and inboxes.

    listeners = Listeners()

    @listeners.on(OrderPlaced, retry=Retry(attempts=5))
    def confirm(event: Event[OrderPlaced]) -> None:
        print(event.payload.id)

    @listeners.on_batch("Viewed", size=500)
    async def count(events: Sequence[Event]) -> None: ...

A plain function runs in a thread, an async one in the event loop. A listener may take a second argument: the
`Delivery` in outboxes and groups, the connection or session of its transaction in an inbox.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypedDict, TypeVar, Unpack, get_args, overload

from .codec import JSON_CODEC, Codec
from .contracts.models import Model, model_of
from .delivery import Delivery
from .durations import Duration, parse_duration
from .errors import ConfigError
from .event import Event, name_of
from .hooks import Filter, Interceptor
from .ids import key_hash
from .retry import Retry

M = TypeVar("M")
R = TypeVar("R", covariant=True)
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    C = TypeVarWithDefault("C", default=Delivery)  # the second argument of listeners
else:
    C = TypeVar("C")

Unmatched = Literal["dead", "ignore"]
UNSET: Final[Any] = object()
ANY: Final = ""  # no event and no aggregate has an empty type


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """A function that was registered, and with what."""

    name: str
    call: Callable[..., Any]
    is_async: bool
    takes_two: bool  # (event, second) rather than (event)
    codec: Codec | None  # reads payloads into the listener's model
    where: Filter | None
    retry: Retry | None
    timeout: timedelta | None  # UNSET: as the settings say
    size: int | None  # most events of a call; None: it takes one event


class ListenerOptions(TypedDict, total=False):
    """What `on` and `on_batch` take besides the type of event; they say what each is for."""

    aggregate_type: str | Enum | None
    name: str | None
    where: Filter | None
    retry: Retry | None
    timeout: Duration | None


class Decorator(Protocol[M, C]):
    """What `on` gives: it takes a function of an event, or of an event and the second argument of these listeners."""

    @overload
    def __call__(self, function: Callable[[Event[M]], R], /) -> Callable[[Event[M]], R]: ...
    @overload
    def __call__(self, function: Callable[[Event[M], C], R], /) -> Callable[[Event[M], C], R]: ...


class BatchDecorator(Protocol[M]):
    """What `on_batch` gives: it takes a function of several events."""

    def __call__(self, function: Callable[[Sequence[Event[M]]], R], /) -> Callable[[Sequence[Event[M]]], R]: ...


class Listeners(Generic[C]):
    """Which function is called for which event. One registry for outboxes, groups and inboxes.

    where         events for which this is False are ignored
    interceptors  called around every listener
    unmatched     what becomes of an event that no listener takes: "dead", the default of outboxes, queues and inboxes,
                  or "ignore", that of pub/sub groups
    """

    def __init__(
        self,
        *,
        where: Filter | None = None,
        interceptors: Iterable[Interceptor] = (),
        unmatched: Unmatched | None = None,
    ) -> None:
        if unmatched is not None and unmatched not in get_args(Unmatched):
            raise ConfigError(f"expected unmatched to be 'dead' or 'ignore', got {unmatched!r}")
        self.where = _filter(where, "the listeners")
        self.interceptors = tuple(interceptors)
        self.unmatched = unmatched
        self._all: dict[tuple[str, str], tuple[Listener, ...]] = {}  # by type and aggregate type
        self._found: dict[tuple[str, str], tuple[Listener, ...]] = {}

    @overload
    def on(self, type: type[M], /, **options: Unpack[ListenerOptions]) -> Decorator[M, C]: ...
    @overload
    def on(self, type: str | Enum, /, *, model: type[M], **options: Unpack[ListenerOptions]) -> Decorator[M, C]: ...
    @overload
    def on(self, type: str | Enum, /, **options: Unpack[ListenerOptions]) -> Decorator[Any, C]: ...
    def on(self, type: Any, /, *, model: Any = None, **options: Any) -> Any:
        """The decorated function takes the events of a type.

        type            a model class (its events are those of `Event.of`), or the name of an event type
        model           what payloads are read into, if `type` is a name
        aggregate_type  only events of this one; without, those that no other listener is exactly for
        name            in groups several named listeners of a type share its events by key
        where           a plain function; events for which it is False are ignored
        retry, timeout  of this listener, instead of those of the settings
        """
        return self._decorator(type, model, None, **options)

    @overload
    def on_batch(
        self, type: type[M], /, *, size: int = 100, **options: Unpack[ListenerOptions]
    ) -> BatchDecorator[M]: ...
    @overload
    def on_batch(
        self, type: str | Enum, /, *, size: int = 100, model: type[M], **options: Unpack[ListenerOptions]
    ) -> BatchDecorator[M]: ...
    @overload
    def on_batch(
        self, type: str | Enum, /, *, size: int = 100, **options: Unpack[ListenerOptions]
    ) -> BatchDecorator[Any]: ...
    def on_batch(self, type: Any, /, *, size: int = 100, model: Any = None, **options: Any) -> Any:
        """As `on`, but the function takes a sequence of at most `size` events. It raises BatchFailed({event: error})
        if some failed; any other error is about all of them, and they are tried again in smaller batches."""
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"expected size to be a positive number of events, got {size!r}")
        return self._decorator(type, model, size, **options)

    def _decorator(
        self,
        kind: Any,
        model: Any,
        size: int | None,
        *,
        aggregate_type: str | Enum | None = None,
        name: str | None = None,
        where: Filter | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = UNSET,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        if isinstance(kind, type) and not issubclass(kind, Enum):
            if model is not None:
                raise ConfigError(f"{kind.__name__} is the model already: omit model=, or name the event type as text")
            model, kind = kind, getattr(kind, "event_type", kind.__name__)
        if inspect.isroutine(kind):
            raise ConfigError(
                f'expected the type of the events that {_name(kind)} takes: write @listeners.on("OrderPlaced")'
            )
        event_type = name_of(kind, "event type")
        aggregate = ANY if aggregate_type is None else name_of(aggregate_type, "aggregate type")
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError(f"expected retry to be a Retry, such as Retry(attempts=5), got {retry!r}")
        limit = timeout if timeout is UNSET or timeout is None else parse_duration(timeout, "timeout")
        codec = None if model is None else reader(model)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if not callable(function):
                raise ConfigError(f"expected a listener to be callable, got {function.__class__.__name__}")
            called = name or _name(function)
            two = _takes_two(function)
            if two and size is not None:
                raise ConfigError(f"expected {called} to take a sequence of events and nothing else")
            self._add(
                event_type,
                aggregate,
                Listener(
                    called, function, is_async(function), two, codec,
                    _filter(where, called), retry, limit, size,
                ),
                named=name is not None,
            )  # fmt: skip
            return function

        return decorate

    def _add(self, event_type: str, aggregate: str, listener: Listener, *, named: bool = False) -> None:
        others = self._all.get((event_type, aggregate), ())
        if others and not named:
            raise ConfigError(
                f"there is a listener for {event_type!r} already, {others[0].name}; call several functions from one, "
                "use different aggregate types, or give each a name= to share its events in a group"
            )
        if listener.name in [other.name for other in others]:
            raise ConfigError(f"there is a listener named {listener.name!r} for {event_type!r} already")
        # By name: every process chooses the same of several.
        self._all[event_type, aggregate] = tuple(sorted((*others, listener), key=lambda each: each.name))
        self._found.clear()

    def by_type(self) -> dict[tuple[str, str], tuple[Listener, ...]]:
        """By type and aggregate type."""
        return self._all

    def candidates(self, event: Event) -> tuple[Listener, ...]:
        """For its type and aggregate type; else for its type; else for everything."""
        place = event.type, event.aggregate_type
        found = self._found.get(place)
        if found is None:
            every = self.by_type()
            found = every.get(place) or every.get((event.type, ANY)) or every.get((ANY, ANY)) or ()
            if len(self._found) < KEPT:
                self._found[place] = found
        return found

    def find(self, event: Event) -> Listener | None:
        """The one to call. Of several, the same for the same key in every process. None: none is for it, or the
        filters say so."""
        if self.where is not None and not self.where(event):
            return None
        found = self._found.get((event.type, event.aggregate_type)) or self.candidates(event)
        if len(found) == 1:
            only = found[0]
            return only if only.where is None or only.where(event) else None
        willing = [listener for listener in found if listener.where is None or listener.where(event)]
        return willing[key_hash(event.id if event.key is None else event.key) % len(willing)] if willing else None

    def event_types(self) -> set[str]:
        """Of all listeners that are for one."""
        return {event_type for event_type, _ in self.by_type()} - {ANY}

    def aggregate_types(self, event_type: str) -> list[str]:
        """Of listeners that are for this type of event, and for one aggregate type."""
        return sorted(aggregate for type_, aggregate in self.by_type() if type_ == event_type and aggregate != ANY)

    def types(self) -> set[str]:
        """Of events that there are listeners for."""
        return {type_ for type_, _ in self._all if type_ != ANY}

    def all(self) -> list[Listener]:
        """Every registered listener."""
        return [listener for listeners in self.by_type().values() for listener in listeners]

    def __len__(self) -> int:
        return len(self.all())


class Changed(Listeners[C]):
    """Other listeners, each as `change` makes it; those that are registered later, too."""

    def __init__(self, of: Listeners[C], change: Callable[[Listener], Listener]) -> None:
        super().__init__(where=of.where, interceptors=of.interceptors, unmatched=of.unmatched)
        self._of, self._change = of, change
        self._changed: dict[Listener, Listener] = {}

    def _one(self, listener: Listener) -> Listener:
        found = self._changed.get(listener)
        if found is None:
            found = self._changed[listener] = self._change(listener)
        return found

    def candidates(self, event: Event) -> tuple[Listener, ...]:
        return tuple(map(self._one, self._of.candidates(event)))

    def by_type(self) -> dict[tuple[str, str], tuple[Listener, ...]]:
        return {place: tuple(map(self._one, found)) for place, found in self._of.by_type().items()}


KEPT = 10_000  # types of events whose listeners are remembered; types come from outside


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def registry(listeners: Listeners[C] | Callable[..., object], *, several: bool = False) -> Listeners[C]:
    """What was given to `deliver`: listeners, or one function that takes everything."""
    if isinstance(listeners, Listeners):
        for (event_type, _), found in listeners.by_type().items():
            if len(found) > 1 and not several:
                names = " and ".join(listener.name for listener in found)
                raise ConfigError(
                    f"{names} take {event_type!r}: only the groups of topics share events among listeners. "
                    "Call several functions from one"
                )
        return listeners
    if not callable(listeners):
        raise ConfigError(f"expected Listeners or a function of an event, got {type(listeners).__name__}")
    every: Listeners[C] = Listeners()
    called = _name(listeners)
    two = _takes_two(listeners)
    every._add(ANY, ANY, Listener(called, listeners, is_async(listeners), two, None, None, None, UNSET, None))
    return every


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", "") or type(function).__qualname__


def reader(model: Any) -> Codec:
    """A codec that reads into a model."""
    return _Reader(model_of(model, is_json=True, checked=True))


class _Reader:
    def __init__(self, model: Model) -> None:
        self.decode = model.read
        self.encode = JSON_CODEC.encode


def _filter(where: Filter | None, owner: str) -> Filter | None:
    if where is not None and (not callable(where) or inspect.iscoroutinefunction(where)):
        raise ConfigError(f"expected `where` of {owner} to be a plain function of an event that returns a bool")
    return where


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if len(required) > 2 or not (positional or any(p.kind is p.VAR_POSITIONAL for p in parameters)):
        raise ConfigError(
            f"expected listener {getattr(function, '__name__', function)!r} to take an event and, if it likes, a "
            f"second argument; it takes {len(required)} arguments"
        )
    return len(required) == 2

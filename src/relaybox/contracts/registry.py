"""The registry: contracts by type and version, and the way from old versions to new ones."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Required, Self, TypedDict, TypeVar, Unpack

from ..codec import JSON, JSON_CODEC
from ..errors import ConfigError, ContractViolation, InvalidEvent
from ..event import GLOBAL, Event, name_of
from . import export, toml_file
from .contract import VERSION_HEADER, Contract, version_of
from .models import model_of

T = TypeVar("T", bound=type)
Upcaster = Callable[[Any], Any]
F = TypeVar("F", bound=Upcaster)


class ContractOptions(TypedDict, total=False):
    """What a contract says besides the type of event and its payload; see `Contracts.add`."""

    to: Required[str]
    version: int
    aggregate_type: str | Enum
    content_type: str
    key_required: bool
    check_payload: bool


class Contracts:
    """What events of each type and version must look like, and where a relay sends them.

    contracts = Contracts()
    contracts.add("OrderPlaced", to="orders", aggregate_type="Order", payload=OrderPlacedV1)

    @contracts.event("OrderPlaced", version=2, to="orders", aggregate_type="Order")
    class OrderPlaced(BaseModel): ...

    @contracts.upcast("OrderPlaced", from_version=1)
    def with_currency(old): ...

    Register everything, then `verify()`. `publish_as="newest"`: a relay brings old events up to date.
    """

    def __init__(self, *, publish_as: Literal["stored", "newest"] = "stored") -> None:
        if publish_as not in ("stored", "newest"):
            raise ConfigError(f"expected publish_as to be 'stored' or 'newest', got {publish_as!r}")
        self.publish_as = publish_as
        self._types: dict[str, dict[int, Contract]] = {}
        self._newest: dict[str, Contract] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """The tables `[contracts.TYPE]` of a file; `schema` in them is a JSON Schema file beside it."""
        contracts = cls()
        for options in toml_file.entries(Path(path)):
            contracts.add(**options)
        return contracts

    # -- register -------------------------------------------------------------------------------------

    def add(
        self,
        type: str | Enum,
        *,
        to: str,
        version: int = 1,
        aggregate_type: str | Enum = GLOBAL,
        payload: Any = None,
        content_type: str = JSON,
        key_required: bool = True,
        check_payload: bool = True,
    ) -> Contract:
        """`payload`: a dataclass, pydantic model, msgspec.Struct or JSON Schema; None for any JSON but null."""
        try:
            typical = Event(type, 0, aggregate_type=aggregate_type, content_type=content_type)
        except InvalidEvent as error:
            raise ConfigError(f"no event could keep this contract: {error}") from error
        if not isinstance(to, str) or not to:
            raise ConfigError(f"expected the destination (to) of {typical.type!r} to be non-empty text, got {to!r}")
        if version.__class__ is not int or version < 1:
            raise ConfigError(f"expected the version of {typical.type!r} to be a whole number from 1, got {version!r}")
        if version in self._types.get(typical.type, ()):
            raise ConfigError(f"version {version} of {typical.type!r} is registered already")
        contract = Contract(
            type=typical.type,
            version=version,
            to=to,
            aggregate_type=typical.aggregate_type,
            content_type=typical.content_type,
            is_json=typical.is_json,
            key_required=key_required,
            check_payload=check_payload,
            model=model_of(payload, is_json=typical.is_json, checked=check_payload),
        )
        versions = self._types.setdefault(contract.type, {})
        versions[version] = contract
        self._newest[contract.type] = versions[max(versions)]
        return contract

    def event(self, type: str | Enum, **options: Unpack[ContractOptions]) -> Callable[[T], T]:
        """Decorates a payload model: `add` with it."""

        def decorate(model: T) -> T:
            self.add(type, payload=model, **options)
            return model

        return decorate

    def upcast(self, type: str | Enum, *, from_version: int) -> Callable[[F], F]:
        """Decorates a function from the payload of this version to that of the next: models, or JSON values."""
        name = name_of(type, "event type")

        def decorate(function: F) -> F:
            if (name, from_version) in self._upcasters:
                raise ConfigError(f"there is an upcaster from version {from_version} of {name!r} already")
            self._upcasters[name, from_version] = function
            return function

        return decorate

    def verify(self) -> None:
        """ConfigError unless every model can be read and every chain of upcasters is whole. Call it at the start."""
        for contract in self:
            _ = contract.model.schema
        problems = [] if self._types else ["no contract is registered"]
        given = set(self._upcasters)
        upcast = set(self._types) if self.publish_as == "newest" else {name for name, _ in given}
        old = {(c.type, c.version) for c in self if c is not self._newest[c.type]}
        for name, version in sorted(given - old):
            problems.append(f"the upcaster from version {version} of {name!r} leads nowhere: register both versions")
        for name, version in sorted(old - given):
            if name in upcast:
                problems.append(f"there is no upcaster from version {version} of {name!r}")
        if problems:
            raise ConfigError("; ".join(problems))

    # -- look up and check ----------------------------------------------------------------------------

    def get(self, type: str | Enum, version: int | None = None) -> Contract:
        """The contract of a type; the newest without a version."""
        name = name_of(type, "event type")
        if name not in self._types:
            raise _unknown_type(f"there is no contract for event type {name!r}")
        contract = self._newest[name] if version is None else self._types[name].get(version)
        if contract is None:
            raise self._unknown_version(f"there is no version {version} of event type {name!r}", name)
        return contract

    def resolve(self, event: Event) -> Contract:
        """The contract of an event, by its type and version alone: where it goes."""
        versions = self._types.get(event.type)
        if versions is None:
            raise _unknown_type(f"event {event.id}: there is no contract for its type {event.type!r}")
        version = version_of(event)
        contract = versions.get(version)
        if contract is None:
            raise self._unknown_version(f"event {event.id} ({event.type!r}) is of version {version}", event.type)
        return contract

    def check(self, event: Event) -> Contract:
        """The same, if the event keeps its contract; otherwise ContractViolation."""
        contract = self.resolve(event)
        contract.check(event)
        return contract

    def outgoing(self, event: Event) -> tuple[Event, Contract]:
        """What a relay publishes, and by which contract: the checked event, in the version `publish_as` says."""
        contract = self.check(event)
        if self._goes_out(contract):
            return event, contract
        return self.upcast_to(event), self._newest[event.type]

    def _goes_out(self, contract: Contract) -> bool:
        return self.publish_as == "stored" or contract is self._newest[contract.type]

    def _unknown_version(self, text: str, name: str) -> ContractViolation:
        known = ", ".join(map(str, sorted(self._types[name])))
        return ContractViolation(f"{text}; registered: {known}. Add the other with contracts.add", "unknown_version")

    def __iter__(self) -> Iterator[Contract]:
        for name in sorted(self._types):
            for version in sorted(self._types[name]):
                yield self._types[name][version]

    def __len__(self) -> int:
        return sum(map(len, self._types.values()))

    # -- make, upcast and read ------------------------------------------------------------------------

    def make(
        self,
        type: str | Enum,
        payload: Any,
        *,
        version: int | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Event:
        """An event that keeps its contract. `payload`: a model or what it is made of; `options`: those of Event."""
        contract = self.get(type, version)
        if headers and VERSION_HEADER in headers:
            raise ConfigError(f"the header {VERSION_HEADER} is set by the contract; give version= instead")
        event = _event(contract, payload, headers or {}, **options)
        contract.check(event)
        return event

    def upcast_to(self, event: Event, version: int | None = None) -> Event:
        """The event in a newer version, by default the newest. Id, key, times and other headers stay."""
        contract, target = self.resolve(event), self.get(event.type, version)
        if contract.version > target.version:
            text = f"version {target.version} was asked for, and there is no way back"
            raise contract.refusal(event, "unknown_version", text)
        if contract is target:
            return event
        while contract is not target:
            event, contract = self._next(event, contract)
        contract.check(event)
        return event

    def read(self, event: Event, version: int | None = None) -> Any:
        """For listeners: the payload as the model of the newest (or given) version."""
        event = self.upcast_to(event, version)
        return self.resolve(event).read(event)

    def _next(self, event: Event, contract: Contract) -> tuple[Event, Contract]:
        upcaster = self._upcasters.get((contract.type, contract.version))
        if upcaster is None:
            raise contract.refusal(event, "upcast", "no upcaster leads on from here; see contracts.verify()")
        versions = self._types[contract.type]
        following = versions[min(version for version in versions if version > contract.version)]
        old = contract.read(event)
        try:
            return _carried_over(event, upcaster(old), following), following
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"its upcaster raised {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
            problem = contract.refusal(event, "upcast", text)
        raise problem

    # -- export ---------------------------------------------------------------------------------------

    def json_schema(self) -> dict[str, Any]:
        """One JSON Schema document with a definition per type and version."""
        return export.json_schema(list(self))

    def asyncapi(
        self,
        *,
        title: str,
        version: str,
        servers: Mapping[str, Mapping[str, Any]] | None = None,
        form: export.Form = "plain",
        attribute_prefix: str = "ce_",
    ) -> dict[str, Any]:
        """An AsyncAPI 3.0 document of what a relay sends. `form` is its message format; CloudEvents attributes have
        the prefix of the sink."""
        sent = [contract for contract in self if self._goes_out(contract)]
        return export.asyncapi(sent, title, version, servers or {}, form, attribute_prefix)


def _unknown_type(text: str) -> ContractViolation:
    return ContractViolation(f"{text}; register it with contracts.add", "unknown_type")


def _event(contract: Contract, payload: Any, headers: Mapping[str, str], **options: Any) -> Event:
    if not contract.is_json and not isinstance(payload, (bytes, bytearray, memoryview)):
        raise InvalidEvent(f"expected a payload of {contract.content_type} to be bytes, got {type(payload).__name__}")
    return Event(
        contract.type,
        payload,
        aggregate_type=contract.aggregate_type,
        content_type=contract.content_type,
        headers={**headers, VERSION_HEADER: str(contract.version)},
        codec=JSON_CODEC,
        **options,
    )


def _carried_over(event: Event, payload: Any, contract: Contract) -> Event:
    """The same event with another payload: its number and its times stay too."""
    made = _event(contract, payload, event.headers)
    return Event.stored(
        (
            event.seq,
            event.id,
            event.type,
            made.aggregate_type,
            event.key,
            event.tenant,
            made.content_type,
            made.body,
            made.headers_text,
            event.occurred_at,
            event.deliver_at,
            event.created_at,
        ),
        sender=event.sender,
    )

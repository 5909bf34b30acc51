"""From text to sections: what the environment and a file say, by the path of each setting.

    Settings(delivery=DeliverySettings(workers=8))    RELAYBOX_DELIVERY_WORKERS=8    [relaybox.delivery] workers = 8

Nothing here knows a section: names, types and texts are those of the dataclasses.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import time
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from ..durations import DurationField, OptionalDurationField, parse_duration
from ..errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ENVIRONMENT = "RELAYBOX_"
SECRET = {"secret": True}  # the metadata of a field
HIDDEN = "***"
_SERVICE = re.compile(r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)")
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_TEXTS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    time: (time.fromisoformat, "a time of day such as 02:00"),
}
D = TypeVar("D", bound="DataclassInstance")


class Leaf(NamedTuple):
    """One setting of a tree of dataclasses."""

    path: str  # delivery.retry.attempts
    kind: Any  # bool, int, float, str, time, a Literal, or a field of durations
    optional: bool
    about: str
    secret: bool = False  # it is shown nowhere

    @property
    def variable(self) -> str:
        return ENVIRONMENT + self.path.replace(".", "_").upper()


class Explained(NamedTuple):
    path: str
    value: Any
    origin: str
    about: str


class Loaded(NamedTuple, Generic[D]):
    settings: D
    origins: list[Explained]


def leaves(cls: type) -> tuple[Leaf, ...]:
    """Every setting of a dataclass and of the dataclasses in it, except what only code can give."""
    return _leaves_of(cls)


@cache
def _leaves_of(cls: type) -> tuple[Leaf, ...]:
    return tuple(_leaves(cls, ""))


def _leaves(cls: type, above: str) -> Iterator[Leaf]:
    hints = get_type_hints(cls, include_extras=True)
    for entry in dataclasses.fields(cls):
        hint, about = hints[entry.name], ""
        if get_origin(hint) is Annotated:
            hint, about = get_args(hint)
        kinds = [kind for kind in get_args(hint) if kind is not NoneType] if isinstance(hint, UnionType) else [hint]
        optional = hint is OptionalDurationField or kinds != [hint]
        if dataclasses.is_dataclass(kinds[0]):
            yield from _leaves(hint, f"{above}{entry.name}.")
        elif isinstance(kinds[0], type) or get_origin(kinds[0]) is Literal:
            yield Leaf(above + entry.name, kinds[0], optional, about, bool(entry.metadata.get("secret")))


def load(base: D, layers: Mapping[str, Mapping[str, Any]]) -> Loaded[D]:
    """`base` with what the layers say, by path; a later layer wins. A layer is named by where its values come from."""
    known = {leaf.path: leaf for leaf in leaves(type(base))}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, layer in layers.items():
        for path, value in layer.items():
            if path not in known:
                raise ConfigError(f"unknown setting {path!r} ({source}){nearest(path, known)}")
            leaf = known[path]
            origins[path] = f"environment {leaf.variable}" if source == "environment" else source
            values[path] = _typed(leaf, value, origins[path])
    settings = replaced(base, values)

    def explained(leaf: Leaf) -> Explained:
        value = at(settings, leaf.path)
        shown = HIDDEN if leaf.secret and value is not None else value
        return Explained(leaf.path, shown, origins.get(leaf.path, "default"), leaf.about)

    return Loaded(settings, [explained(leaf) for leaf in known.values()])


def at(settings: Any, path: str) -> Any:
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


def replaced(base: D, values: Mapping[str, Any]) -> D:
    """A copy with other values, by path."""
    changes: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if rest:
            below.setdefault(name, {})[rest] = value
        else:
            changes[name] = value
    changes |= {name: replaced(getattr(base, name), inner) for name, inner in below.items()}
    return dataclasses.replace(base, **changes)


def nearest(name: str, known: Collection[str]) -> str:
    """A hint for a name that is mistyped, or is only the last part of one."""
    sections = {path.partition(".")[0] for path in known if "." in path}
    if "." not in name and (section := get_close_matches(name, sections, 1, cutoff=0.8)):
        return f"; did you mean {section[0]}?"
    last = re.split(r"[._]", name)[-1]
    same_end = [path for path in known if re.split(r"[._]", path)[-1] == last]
    found = get_close_matches(name, known, 1, cutoff=0.8) or same_end or get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else f"; a setting is a section and a name, such as {min(known)}"


# -- the environment --------------------------------------------------------------------------------


def of_a_service(name: str) -> bool:
    """Kubernetes sets such variables in every pod for services whose names begin as ours do."""
    return _SERVICE.fullmatch(name) is not None


def prefixed(environment: Mapping[str, str], kind: str) -> dict[str, Any]:
    """The options of a sink or a source: of RELAYBOX_SINK_URL and `SINK_` the name `url`."""
    start = ENVIRONMENT + kind
    given = {n.removeprefix(start): value for n, value in environment.items() if n.startswith(start) and value}
    return {name.lower(): value for name, value in given.items() if not of_a_service(name)}


def from_environment(
    cls: type, environment: Mapping[str, str], elsewhere: Collection[str], prefixes: tuple[str, ...]
) -> dict[str, str]:
    """Values by the path of their setting. `elsewhere` and `prefixes`: variables that are read by others."""
    known = {leaf.variable: leaf.path for leaf in leaves(cls)}
    found: dict[str, str] = {}
    for variable, value in environment.items():
        name = variable.removeprefix(ENVIRONMENT)
        if variable in known:
            found[known[variable]] = value
        elif (
            variable.startswith(ENVIRONMENT)
            and name not in elsewhere
            and not name.startswith(prefixes)
            and not of_a_service(name)
        ):
            names = [path.replace(".", "_").upper() for path in known.values()]
            hint = re.sub(r"(mean|as) ", rf"\1 {ENVIRONMENT}", nearest(name, names))
            raise ConfigError(f"unknown setting {variable} in the environment{hint}")
    return found


# -- a file -----------------------------------------------------------------------------------------


def read_file(path: Path) -> dict[str, Any]:
    """Everything under [relaybox] (or the whole file), with what belongs to the command line."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the settings file {path.name} is not TOML: {error}") from error
    section = content.get("relaybox", content)
    if not isinstance(section, dict):
        raise ConfigError(f"expected [relaybox] in {path.name} to be a table")
    return section


def table_of(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"expected [relaybox.{name}] to be a table, got {type(found).__name__}")
    return dict(found)


def from_file(cls: type, path: Path, elsewhere: Collection[str]) -> dict[str, Any]:
    """Values by the path of their setting. `elsewhere`: paths that are read by others."""
    return dict(_flat(cls, read_file(path), "", elsewhere))


def from_mapping(cls: type, content: Mapping[str, Any], elsewhere: Collection[str]) -> dict[str, Any]:
    """The same of nested dicts of a program, where a number of a duration is seconds."""
    return dict(_flat(cls, content, "", elsewhere, as_text=False))


def _flat(
    cls: type, content: Mapping[str, Any], above: str, elsewhere: Collection[str], *, as_text: bool = True
) -> Iterator[tuple[str, Any]]:
    kinds = {entry.name: get_type_hints(cls)[entry.name] for entry in dataclasses.fields(cls)}
    for name, value in content.items():
        kind = kinds.get(name)
        if above + name in elsewhere:
            continue
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            inside = table_of({above + name: value}, above + name)
            yield from _flat(kind, inside, f"{above}{name}.", elsewhere, as_text=as_text)
        elif as_text and kind in (DurationField, OptionalDurationField):
            yield above + name, str(value)  # a number is seconds in a program only
        else:
            yield above + name, value


# -- values -----------------------------------------------------------------------------------------


def _typed(leaf: Leaf, value: Any, origin: str) -> Any:
    try:
        return _value(leaf, value)
    except ConfigError as error:
        raise ConfigError(f"{error} ({origin})") from None


def _value(leaf: Leaf, value: Any) -> Any:
    if leaf.optional and (value is None or (isinstance(value, str) and value.lower() in ("none", ""))):
        return None
    kind, path = leaf.kind, leaf.path
    if kind in (DurationField, OptionalDurationField):
        return parse_duration(value, path)
    if kind is bool:
        if str(value).lower() not in _WORDS:
            raise ConfigError(f"expected {path} to be true or false, got {value!r}")
        return _WORDS[str(value).lower()]
    if isinstance(value, str) and kind in _TEXTS:
        read, what = _TEXTS[kind]
        try:
            return read(value)
        except ValueError:
            raise ConfigError(f"expected {path} to be {what}, got {value!r}") from None
    return value  # the section checks it

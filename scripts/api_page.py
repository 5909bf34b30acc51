"""Writes docs/reference/api.md from the public names, their signatures and docstrings; `--check` only compares."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Container, Iterator
from datetime import timedelta
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from pkgutil import walk_packages
from typing import Any, ForwardRef, Union, get_args, get_origin, get_overloads, is_typeddict

from generated import write_or_check

import relaybox
from relaybox.drivers.spi import AsyncConnection, Connection
from relaybox.durations import format_duration
from relaybox.spi import Sink, Source
from relaybox.store.grants import ROLES

WIDTH = 110
HIDDEN = ("_", "test_", "after_fork", "halt", "topic_store")  # of suites that are inherited, and for ours

# Columns, code and drawings.
LINED = re.compile(r"\S {2,}\S|^ {2,}|[│├└─►]|^@|^(with|async|def|class|import|from) .*[:)]|^\w+ = |^[a-z_.]+\(.*\)$")
HEAD = """# API

Written by `scripts/api_page.py` from the code; do not edit.

A name has one address, given by its heading. Modules that are not here are private. `X` is for synchronous programs,
`AsyncX` its twin for asyncio: the same names and arguments, and what does I/O is a coroutine. Twins are shown once.
"""

# Every public module, and a line about it.
MODULES = {
    "relaybox": "What programs are made of.",
    "relaybox.types": "Every other argument and result: for annotations.",
    "relaybox.errors": "All errors. [What to do about each](errors.md).",
    "relaybox.facts": "What observers are told. [The metrics made of it](metrics.md).",
    "relaybox.spi": "What extensions implement.",
    "relaybox.brokers.aws": "",
    "relaybox.brokers.inbox": "",
    "relaybox.brokers.kafka": "",
    "relaybox.brokers.lines": "",
    "relaybox.brokers.nats": "",
    "relaybox.brokers.pubsub": "",
    "relaybox.brokers.rabbitmq": "",
    "relaybox.brokers.redis": "",
    "relaybox.brokers.webhook": "",
    "relaybox.observe.logs": "",
    "relaybox.observe.prometheus": "",
    "relaybox.observe.opentelemetry": "",
    "relaybox.contrib.alembic": "",
    "relaybox.contrib.django": "",
    "relaybox.contrib.fastapi": "",
    "relaybox.contrib.litestar": "",
    "relaybox.contrib.sentry": "",
    "relaybox.contrib.starlette": "",
    "relaybox.testing": "[The test kit](../guides/testing.md).",
    "relaybox.testing.sink_contract": "",
    "relaybox.testing.source_contract": "",
}


# What an alias stands for, where its text would say nothing to people.
ALIASES = {
    "DatabaseRole": "Jobs that a role of the database may have: " + ", ".join(f'`"{role}"`' for role in ROLES) + ".",
    "Duration": 'A `timedelta`, seconds as a number, or text such as `"30s"`, `"1h30m"`, `"7d"`. In results and '
    "attributes a duration is a `timedelta`.",
    "Handle": "What events are written through: a connection, cursor or session of psycopg, psycopg2, sqlite3, "
    "PyMySQL, mysqlclient, MySQL Connector/Python, SQLAlchemy or Django that is in a transaction, or a "
    "`Transaction`.\n\n"
    "`AsyncHandle`: of asyncpg, psycopg, aiosqlite, asyncmy or SQLAlchemy's asyncio part, or an `AsyncTransaction`; "
    "also SQLite's own, because a file answers at once. A type checker refuses the one kind where the other belongs.",
}


# Not imported: servers, and what Django imports by itself when it is set up.
ELSEWHERE = ("relaybox.testing.servers", "relaybox.contrib.django.")

# Protocols that one public class has; named so that what is below it need not know it.
STANDING_FOR = {"Sealing": "Vault"}


def exists(module: str) -> bool:
    return all(find_spec(part) is not None for part in (module.rpartition(".")[0] or module, module))


def public_names(module: str) -> list[str]:
    """Of `__all__`, or what the module defines without an underscore."""
    found = import_module(module)
    own = [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    ]
    return sorted(getattr(found, "__all__", own))


def public_modules() -> list[str]:
    return [module for module in MODULES if exists(module)]


# -- text ---------------------------------------------------------------------------------------------


def own_doc(value: Any) -> str:
    """Its docstring, unless Python wrote it."""
    if isinstance(value, type):
        text = value.__dict__.get("__doc__") or ""
        made = dataclasses.is_dataclass(value) and text.startswith(f"{value.__name__}(")
        return "" if made else inspect.cleandoc(text)
    return inspect.getdoc(value) or ""


def prose(text: str) -> str:
    """Paragraphs as they are; columns, code and drawings in a block, so that their lines stay."""
    parts = []
    for part in re.split(r"\n\s*\n", text):
        lined = any(LINED.search(line) for line in part.splitlines())
        parts.append(f"```\n{part}\n```" if lined else part)
    return "\n\n".join(parts).replace("\n```\n\n```\n", "\n\n")


@cache
def named() -> tuple[frozenset[str], frozenset[str], dict[str, str]]:
    """Of names that stand for types in our code: what is public, the classes that are not, and what private aliases
    stand for."""
    public = frozenset(name for module in public_modules() for name in public_names(module))
    private: set[str] = set()
    aliases: dict[str, Any] = {}
    for found in walk_packages(relaybox.__path__, "relaybox."):
        if found.name.endswith("_main__") or found.name.startswith(ELSEWHERE):
            continue
        try:
            module = import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name != "MySQLdb":  # it is built from C, and in none of the extras that tests need
                raise
            continue
        for name, value in vars(module).items():
            if name in public or not re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                continue
            if isinstance(value, type) and value.__module__ == module.__name__:
                private.add(name)
            elif get_origin(value) is not None and getattr(value, "__parameters__", ()):
                private.add(name)  # of what it stands for, a part is missing
            elif get_origin(value) is not None:
                aliases[name] = value
    texts = {name: plain(value) for name, value in aliases.items()} | STANDING_FOR
    return public, frozenset(private - STANDING_FOR.keys()), texts


def shown(value: Any) -> str:
    """An annotation. An alias that nobody can import is what it stands for."""
    text, aliases = plain(value), named()[2]
    for _ in range(2):  # one may stand for another
        text = re.sub(r"(?<!['.\w])(?:[a-z]+\.)?([A-Z]\w+)(?!['\w])", lambda m: aliases.get(m[1], m[0]), text)
    return text


def private_names(text: str) -> set[str]:
    """Classes of ours in a signature that nobody can import."""
    return set(re.findall(r"\b[A-Z]\w+", re.sub(r"'[^']*'|\"[^\"]*\"", "", text))) & named()[1]


def plain(value: Any) -> str:
    if get_origin(value) is Union:
        return " | ".join(map(plain, get_args(value)))
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    text = value.__forward_arg__ if isinstance(value, ForwardRef) else text
    text = re.sub(r"Annotated\[(.*), (?:'[^']*'|\"[^\"]*\")\]", r"\1", text).replace("DurationField", "Duration")
    return re.sub(r"\b(?:typing|collections\.abc|datetime|relaybox(?:\.\w+)*)\.(?=[A-Z])", "", text)


def default(value: Any) -> str:
    """As a program would write it; `…` where that would be long."""
    text = str(value) if isinstance(value, Enum) else repr(value)
    if isinstance(value, timedelta):
        text = f'"{format_duration(value)}"'
    return "…" if text.startswith("<") or len(text) > 40 else text.replace("'", '"')


def signature(value: Any) -> str:
    """`(arguments) -> result`, with annotations as they are written."""
    told = inspect.signature(value)
    parts, kinds = [], [one.kind for one in told.parameters.values()]
    for number, one in enumerate(told.parameters.values()):
        if one.name in ("self", "cls") and number == 0:
            continue
        if one.kind is one.KEYWORD_ONLY and not set(kinds[:number]) & {one.KEYWORD_ONLY, one.VAR_POSITIONAL}:
            parts.append("*")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        typed = "" if one.annotation is one.empty else f": {shown(one.annotation)}"
        preset = "" if one.default is one.empty else (" = " if typed else "=") + default(one.default)
        parts.append(f"{stars}{one.name}{typed}{preset}")
        if one.kind is one.POSITIONAL_ONLY and kinds[number + 1 : number + 2] != [one.POSITIONAL_ONLY]:
            parts.append("/")
    made = isinstance(value, type) or told.return_annotation is told.empty
    return f"({', '.join(parts)})" + ("" if made else f" -> {shown(told.return_annotation)}")


def wrapped(text: str) -> str:
    """An argument to a line, if a signature is long."""
    if len(text) <= WIDTH:
        return text
    head, _, rest = text.partition("(")
    inner, _, result = rest.rpartition(") -> ") if ") -> " in rest else (rest[:-1], "", "")
    lines = re.split(r", (?![^\[(]*[\])])", inner)
    return f"{head}(\n" + "".join(f"    {line},\n" for line in lines) + ")" + (f" -> {result}" if result else "")


def block(*lines: str) -> str:
    return "```\n" + "\n".join(map(wrapped, lines)) + "\n```"


# -- members ------------------------------------------------------------------------------------------


def own_bases(kind: type, public: set[type]) -> list[type]:
    """The class and those of its bases that have no place of their own on this page."""
    return [
        base for base in kind.__mro__ if base is kind or (base.__module__.startswith("relaybox") and base not in public)
    ]


def member(kind: type, name: str) -> tuple[list[str], str] | None:
    """A method or property: its lines, and what it says."""
    found = inspect.getattr_static(kind, name)
    if isinstance(found, (property, cached_property)):
        getter = found.fget if isinstance(found, property) else found.func
        assert getter is not None
        returned = inspect.signature(getter).return_annotation
        return [f"{name}: {shown(returned)}"], inspect.getdoc(found) or ""
    called = getattr(kind, name)
    if not inspect.isroutine(called):
        return None
    if several := get_overloads(called):
        return [name + signature(one) for one in several], inspect.getdoc(called) or ""
    mark = {classmethod: "classmethod ", staticmethod: "staticmethod "}.get(type(found), "")
    return [f"{mark}{name}{signature(called)}"], inspect.getdoc(called) or ""


def implemented(kind: type) -> list[type]:
    """Which protocols of adapters a class has; what they ask for is described there."""
    return [
        one
        for one in (Sink, Source, Connection, AsyncConnection)
        if one is not kind and all(hasattr(kind, name) for name in vars(one) if name[0] != "_")
    ]


def members(kind: type, public: set[type]) -> dict[str, tuple[list[str], str]]:
    names = dict.fromkeys(name for base in own_bases(kind, public) for name in vars(base))
    elsewhere = {
        name
        for protocol in implemented(kind)
        for base in protocol.__mro__
        for name in (*vars(base), *inspect.get_annotations(base))
    }
    shown = {name: member(kind, name) for name in names if not name.startswith(HIDDEN) and name not in elsewhere}
    return {name: line for name, line in shown.items() if line is not None}


def attributes(kind: type, public: set[type], known: Container[str]) -> list[str]:
    """What is annotated and not an argument: members of an enumeration, slots, fields of protocols."""
    if issubclass(kind, Enum):
        return [f"`{one.name}`" for one in kind]
    noted = {name: note for base in own_bases(kind, public) for name, note in inspect.get_annotations(base).items()}
    notes = {name: shown(note) for name, note in noted.items()}
    arguments = set(inspect.signature(kind).parameters) if has_signature(kind) else set()
    return [
        f"`{name}: {note}`"
        for name, note in notes.items()
        if not (name.startswith("_") or name in known or name in arguments or "ClassVar" in note or private_names(note))
    ]


def is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def has_signature(kind: type) -> bool:
    inherited = issubclass(kind, BaseException) and not inspect.isfunction(kind.__init__)
    if issubclass(kind, Enum) or is_protocol(kind) or is_typeddict(kind) or inherited:
        return False
    return not private_names(signature(kind))  # otherwise it is made by others of ours


def init_doc(kind: type, public: set[type]) -> str:
    """What the constructor says of its arguments."""
    init = next((vars(base)["__init__"] for base in own_bases(kind, public) if "__init__" in vars(base)), None)
    return inspect.cleandoc((init and init.__doc__) or "")


def nearest(kind: type, public: set[type]) -> Iterator[type]:
    """Its public bases; for one that is not, those of that one."""
    for base in kind.__bases__:
        yield from [base] if base in public else nearest(base, public)


def class_parts(name: str, kind: type, twin: type | None, public: set[type]) -> Iterator[str]:
    yield f"### {name}" + (f", Async{name}" if twin else "")
    if has_signature(kind):
        yield block(name + signature(kind))
    if bases := [base.__name__ for base in (*nearest(kind, public), *implemented(kind)) if base in public]:
        yield "Is a " + " and ".join(f"`{base}`" for base in bases) + "."
    yield prose(own_doc(kind))
    yield prose(init_doc(kind, public))
    listed = members(kind, public)
    if named := attributes(kind, public, listed):
        yield ("Members: " if issubclass(kind, Enum) else "Attributes: ") + ", ".join(named) + "."
    for lines, about in listed.values():
        yield block(*lines)
        yield prose(about)
    if twin:
        awaited = [f"`{one}`" for one in listed if inspect.iscoroutinefunction(getattr(twin, one, None))]
        yield f"Coroutines of `Async{name}`: {', '.join(awaited)}."


def parts(name: str, value: Any, twin: Any, public: set[type]) -> Iterator[str]:
    if isinstance(value, type):
        yield from class_parts(name, value, twin if isinstance(twin, type) else None, public)
        return
    if inspect.isroutine(value):
        yield f"### {name}"
        yield block(name + signature(value))
        yield prose(own_doc(value))
        return
    yield f"### {name}" + (f", Async{name}" if twin is not None else "")
    yield ALIASES.get(name) or f"`{name} = {shown(repr(value)) if get_args(value) else default(value)}`"


def text() -> str:
    found = {
        module: {name: getattr(import_module(module), name) for name in public_names(module)}
        for module in public_modules()
    }
    public = {value for names in found.values() for value in names.values() if isinstance(value, type)}
    made = [HEAD.rstrip()]
    for module, names in found.items():
        made += [f"## {module}", MODULES[module] or prose(first_line(module))]
        for name, value in names.items():
            if name.removeprefix("Async") in names and name.startswith("Async"):
                continue
            if getattr(value, "__module__", "") == "relaybox.errors" != module:
                continue
            made += parts(name, value, names.get(f"Async{name}"), public)
        errors = [
            name for name, value in names.items() if getattr(value, "__module__", "") == "relaybox.errors" != module
        ]
        if errors:
            made.append(f"And of [relaybox.errors](#relayboxerrors): {', '.join(f'`{name}`' for name in errors)}.")
    return "\n\n".join(part for part in made if part) + "\n"


def first_line(module: str) -> str:
    return inspect.cleandoc(import_module(module).__doc__ or "").partition("\n\n")[0]


if __name__ == "__main__":
    sys.exit(write_or_check("docs/reference/api.md", text()))

"""The public surface: what it consists of is written down twice, for people and for us, and neither may drift."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module

import pytest
from source_tree import ROOT, page

import relaybox
from relaybox import errors

sys.path.insert(0, str(ROOT / "scripts"))

import api_page


@pytest.mark.parametrize("script", ["api_page.py", "dbt_macros.py", "settings_page.py", "sinks_page.py"])
def test_generated_files_are_up_to_date(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_public_names_equal_the_checked_in_list() -> None:
    """Adding or removing one is a promise made or broken: change the list on purpose."""
    promised = page("tests/house/public_names.txt").split()
    assert promised == sorted(promised)
    names = {f"{module}.{name}" for module in api_page.public_modules() for name in api_page.public_names(module)}
    assert (names - set(promised), set(promised) - names) == (set(), set()), "new, gone: change public_names.txt"


# -- one error tree -----------------------------------------------------------------------------------


def drawn(text: str) -> list[tuple[str, str]]:
    """Every error of a drawn tree with the one above it."""
    found, above = [], ["RelayboxError"]
    for line in textwrap.dedent("\n".join(line for line in text.splitlines() if "──" in line)).splitlines():
        if match := re.match(r"((?:│   |    )*)[├└]── (\w+)", line):
            depth = len(match[1]) // 4 + 1
            found.append((match[2], above[depth - 1]))
            above[depth:] = [match[2]]
    return found


def raised() -> Iterator[type[BaseException]]:
    """Every public error; an error of a private class has no place where people could look it up."""
    todo: list[type[BaseException]] = [errors.RelayboxError]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if kind.__module__ == "relaybox.errors" and not kind.__name__.startswith("_"):
            yield kind


def bases(kind: type) -> set[str]:
    """Its direct ones; those of a private class instead of it."""
    own = [bases(base) if base.__name__.startswith("_") else {base.__name__} for base in kind.__bases__]
    return set().union(*own)


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    assert errors.__doc__ is not None
    tree = drawn(errors.__doc__)
    assert {name for name, _ in tree} | {"RelayboxError"} == {kind.__name__ for kind in raised()}
    for name, above in tree:
        assert above in bases(getattr(errors, name)), f"{name} is not directly a {above}"


def test_the_page_of_errors_shows_the_tree() -> None:
    tree = [line.strip() for line in (errors.__doc__ or "").splitlines() if "──" in line]
    shown = [line.strip() for line in page("docs/reference/errors.md").splitlines() if "──" in line]
    assert shown == tree


def test_the_check_for_the_tree_of_errors() -> None:
    lines = ["RelayboxError", "├── ConfigError   x", "│   └── MissingExtra  y", "└── DeliveryError", "    └── Reject"]
    assert drawn("\n".join(f"    {line}" for line in lines)) == [
        ("ConfigError", "RelayboxError"),
        ("MissingExtra", "ConfigError"),
        ("DeliveryError", "RelayboxError"),
        ("Reject", "DeliveryError"),
    ]


# -- twins --------------------------------------------------------------------------------------------


def twins() -> dict[str, tuple[type, type]]:
    found = {}
    for module in api_page.public_modules():
        for name in api_page.public_names(module):
            twin = getattr(import_module(module), f"Async{name}", None)
            if isinstance(twin, type):
                found[f"{module}.{name}"] = (getattr(import_module(module), name), twin)
    return found


TWINS = twins()


def told(kind: type) -> dict[str, tuple[list[str], str]]:
    """The public members of a class: signature without the words that twins may differ in, and docstring."""
    return {
        name: ([re.sub(r"Async(?=[A-Z])", "", re.sub(r"Awaitable\[(.*?)\]", r"\1", line)) for line in lines], about)
        for name, (lines, about) in api_page.members(kind, {object}).items()
    }


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_same_members_signatures_and_docstrings(name: str) -> None:
    one, other = map(told, TWINS[name])
    assert one.keys() == other.keys()
    assert {member: (one[member], other[member]) for member in one if one[member] != other[member]} == {}


# -- what every public name has -----------------------------------------------------------------------


def public_things() -> Iterator[tuple[str, list[str], str]]:
    """Every public class, function and method: its name, its signatures and its docstring."""
    found = {
        f"{module}.{name}": getattr(import_module(module), name)
        for module in api_page.public_modules()
        for name in api_page.public_names(module)
    }
    public = {value for value in found.values() if isinstance(value, type)}
    for name, value in found.items():
        if isinstance(value, type):
            made = [api_page.signature(value)] if api_page.has_signature(value) else []
            yield name, made, api_page.own_doc(value) or api_page.init_doc(value, public)
            for member, (lines, about) in api_page.members(value, public).items():
                yield f"{name}.{member}", lines, about
        elif inspect.isroutine(value):
            yield name, [api_page.signature(value)], api_page.own_doc(value)


THINGS = list(public_things())


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name, _, about in THINGS if not about] == []


# -- what signatures say ------------------------------------------------------------------------------

# What parts of relaybox use of one another, though its class is public.
OURS = {
    "relaybox.Vault.runner",
    "relaybox.Vault.seal",
    "relaybox.Vault.seal_messages",
    "relaybox.brokers.kafka.KafkaConnection.hosts",
    "relaybox.brokers.nats.NatsConnection.connect",
    "relaybox.brokers.nats.NatsConnection.hosts",
    "relaybox.brokers.rabbitmq.RabbitMQConnection.connect",
    "relaybox.brokers.rabbitmq.RabbitMQConnection.hosts",
    "relaybox.brokers.redis.RedisConnection.hosts",
    "relaybox.types.Adoption.native",
}
# Classes that others of ours make: they have no constructor on the page.
MADE = {"Contract", "Guard", "AsyncGuard", "StartFrom"}


def test_what_a_signature_names_can_be_imported() -> None:
    named = {name: found for name, lines, _ in THINGS if (found := api_page.private_names(" ".join(lines)))}
    assert {name: found for name, found in named.items() if name not in OURS} == {}
    assert OURS - named.keys() == set()


def test_what_programs_make_shows_how() -> None:
    classes = {name: getattr(relaybox, name) for name in relaybox.__all__ if isinstance(getattr(relaybox, name), type)}
    hidden = {name for name, kind in classes.items() if not api_page.has_signature(kind)}
    assert {name for name in hidden if not issubclass(classes[name], Exception)} == MADE
    for module in (one for one in api_page.public_modules() if one.startswith("relaybox.brokers.")):
        adapters = [getattr(import_module(module), name) for name in api_page.public_names(module)]
        assert all(api_page.has_signature(kind) for kind in adapters if isinstance(kind, type)), module


# -- arguments and words ------------------------------------------------------------------------------


def parameters(signature: str) -> list[str]:
    """Their names, in order."""
    return re.findall(r"(?:^[^(]*\(|, |\n\s*)\**(\w+)(?=[:=,)])", signature)


def out_of_order(signature: str) -> bool:
    """A handle comes first, a topic before a group."""
    names = parameters(signature)
    late_handle = "handle" in names[1:]
    return late_handle or ("topic" in names and "group" in names[: names.index("topic")])


def test_arguments_come_in_one_order() -> None:
    assert [name for name, lines, _ in THINGS if any(map(out_of_order, lines))] == []


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("write(handle: Handle, event: Event) -> int", False),
        ("write(event: Event, handle: Handle) -> int", True),
        ("group(topic: str, group: str, *, ordered: bool = True) -> Group", False),
        ("group(group: str, topic: str) -> Group", True),
    ],
)
def test_the_check_for_the_order_of_arguments(signature: str, expected: bool) -> None:
    assert out_of_order(signature) == expected


# One word, one thing: what a public method or argument of this name must look like wherever it is.
GLOSSARY = {
    "drain": (r"drain\(\*, timeout: Duration \| None = None\) -> Counts", "waits until nothing is due"),
    "purge": (r"purge\(.*\) -> int", "deletes what is old; how many"),
    "discard": (r"discard\(.*\) -> int", "gives up for good; how many"),
}


def test_a_word_means_one_thing() -> None:
    wrong = {
        name: lines
        for name, lines, _ in THINGS
        if (word := GLOSSARY.get(name.rpartition(".")[2]))
        if not any(re.fullmatch(word[0], line, re.DOTALL) for line in lines)
    }
    assert wrong == {}


def test_no_argument_borrows_the_word_of_a_method() -> None:
    """`drain=` was how long a cancelled group may finish what it holds, which is not what drain() does."""
    assert [name for name, lines, _ in THINGS if any(set(parameters(line)) & GLOSSARY.keys() for line in lines)] == []


def test_what_takes_a_duration_takes_every_form_of_it() -> None:
    """Text with a unit and seconds, too; what relaybox itself makes may ask for a timedelta."""
    ours = {"relaybox.types", "relaybox.facts", "relaybox.spi"}
    strict = {
        name: line
        for name, lines, _ in THINGS
        for line in lines
        if name.rpartition(".")[0] not in ours and re.search(r"\w: timedelta(?: \| None)? = ", line)
    }
    assert strict == {}


def test_a_lease_is_a_duration() -> None:
    given = {
        name: line
        for name, lines, _ in THINGS
        for line in lines
        if re.search(r"\blease: (?!Duration|OptionalDuration|float)", line)
    }
    assert given == {}

"""One word, one thing: a name that stands for two classes or types has to be looked up each time."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from source_tree import modules

# A name, where it stands more than once, and why it may.
PARALLEL = "the same part of the contract suites of sinks and of sources, which nobody uses together"
LOOKED_FOR = "the name that Django looks for"
SHOWN = "the name that the admin of Django shows, and makes those of permissions of"
MODELS = "contrib/django/models.py"
EXCUSED = {
    "BlockedKey": ({MODELS, "values.py"}, SHOWN),
    "Command": (
        {"cli/app.py", *(f"contrib/django/management/commands/{name}.py" for name in ("flush", "relaybox"))},
        LOOKED_FOR,
    ),
    "DeadLetter": ({MODELS, "values.py"}, SHOWN),
    "Event": ({MODELS, "event.py"}, SHOWN),
    "Fixtures": ({"testing/sink_contract/harness.py", "testing/source_contract/harness.py"}, PARALLEL),
    "Group": ({MODELS, "topics/group.py"}, SHOWN),
    "Inbox": ({MODELS, "inbox/inbox.py"}, SHOWN),
    "LifeContract": ({"testing/sink_contract/life.py", "testing/source_contract/life.py"}, PARALLEL),
    "Migration": ({"contrib/django/migrations/0001_tables.py", "store/schema.py"}, LOOKED_FOR),
    "OutageContract": ({"testing/sink_contract/outage.py", "testing/source_contract/outage.py"}, PARALLEL),
}


def type_names(tree: ast.Module) -> Iterator[str]:
    """Classes and aliases of types that a module defines; those with an underscore are its own affair."""
    for node in tree.body:
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.Assign(targets=[ast.Name(id=name)])
                | ast.AnnAssign(target=ast.Name(id=name))
            ):
                if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                    yield name


def test_no_two_modules_give_the_same_name_to_different_things() -> None:
    found = defaultdict(set)
    for file, tree in modules().items():
        for name in type_names(tree):
            found[name].add(file)
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert twice == {name: files for name, (files, _) in EXCUSED.items()}, "give the less public one another name"


def test_the_check_for_names() -> None:
    code = "class Page: ...\nclass _Page: ...\nLIMIT = 1\nlog = 2\nPace = Literal['a']\nStart: TypeAlias = str\nT = 3"
    assert list(type_names(ast.parse(code))) == ["Page", "Pace", "Start"]

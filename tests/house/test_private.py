"""Private parts of other libraries: only those that a test with the library's version looks after."""

from __future__ import annotations

import ast

from source_tree import modules, page

# Written with an underscore, and documented all the same.
DOCUMENTED = {"_asdict", "_current_frames", "_exit"}
# Where such a part is used, which, and the test that names the version in which it was looked at.
LOOKED_AT = {
    "brokers/nats/connection.py": ({"_flush_queue", "_io_writer"}, "tests/brokers/test_nats.py"),
    "drivers/aiosqlite.py": ({"_conn"}, "tests/drivers/test_private_parts.py"),
    "drivers/asyncmy.py": ({"_stream_broken", "_transport", "_writer"}, "tests/drivers/test_private_parts.py"),
    "drivers/asyncpg.py": ({"_con", "_introspect_types"}, "tests/drivers/test_private_parts.py"),
    "drivers/django.py": ({"_from_testcase"}, "tests/drivers/test_private_parts.py"),
    "drivers/asyncpg_pool.py": (
        {
            "_connect",
            "_connect_args",
            "_connect_kwargs",
            "_connection_class",
            "_init",
            "_loop",
            "_record_class",
            "_setup",
        },
        "tests/drivers/test_private_parts.py",
    ),
    "drivers/psycopg_pool.py": ({"_configure"}, "tests/drivers/test_private_parts.py"),
    "drivers/mysql_connector.py": ({"_cnx", "_raw", "_socket"}, "tests/drivers/test_private_parts.py"),
    "drivers/mysql_session.py": ({"_ssl_context"}, "tests/drivers/test_private_parts.py"),
    "drivers/pymysql.py": ({"_sock"}, "tests/drivers/test_private_parts.py"),
    "drivers/sqlalchemy.py": (
        {"_connections", "_max_overflow", "_on_connect_isolation_level"},
        "tests/drivers/test_private_parts.py",
    ),
}


def own() -> set[str]:
    """Every private name that our own code gives to something."""
    found: set[str] = set()
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def private(tree: ast.Module) -> set[str]:
    """Private names that a module asks other objects for, also by getattr."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "KafkaError":  # its codes are called so
            found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            found |= {arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_no_private_part_of_another_library_is_used_unseen() -> None:
    ours = own()
    found = {file: private(tree) for file, tree in modules().items()}
    foreign = {file: names - ours - DOCUMENTED for file, names in found.items()}
    missing = {file: names - LOOKED_AT.get(file, (set(), ""))[0] for file, names in foreign.items()}
    assert {file: names for file, names in missing.items() if names} == {}, "use the library's API, or test its version"


def test_every_excuse_has_its_test_and_none_is_stale() -> None:
    for file, (names, test) in LOOKED_AT.items():
        assert names <= private(modules()[file]), f"{file} does not use all of them any more"
        text = page(test)
        assert "version(" in text
        assert [name for name in names if name not in text] == [], test

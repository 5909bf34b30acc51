"""SQL: the same names in every dialect, none unused, none missing, and none built from strings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache

import pytest
from source_tree import modules

from relaybox.store.inbox import InboxTables
from relaybox.store.names import Tables
from relaybox.store.queries import read
from relaybox.store.queries import texts as texts_of

DIALECTS = ("postgres", "sqlite", "mysql")
PRODUCTS = ("shared", "outbox", "guard", "inbox", "inbox/adopted", "replica", "replica/kept", "vault")
# Sets of their own: only PostgreSQL keeps topics and feeds.
TOPICS = {name for product in ("topics", "feeds", "feeds/reading") for name in texts_of(product, "postgres").queries}

# Queries that not every dialect has: (who has them, why, which).
STEPPED = ("sqlite", "mysql")
EXCUSED: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (
        STEPPED,
        "one statement on PostgreSQL; several where an UPDATE cannot skip locked rows or change two tables",
        (
            "inbox.accept.message",
            "inbox.accept.pending",
            "inbox.accept.seen",
            "inbox.journal.accepted",
            "inbox.journal.add",
            "inbox.journal.marked",
            "inbox.journal.pick",
            "inbox.journal.remove",
            "outbox.claim.pick",
            "outbox.claim.read",
            "outbox.claim.shards",
            "outbox.claim.take",
            "outbox.dead.pick",
            "outbox.events.pick",
            "instance.remove",
            "outbox.instance.free",
            "outbox.keys.pick",
            "outbox.purge.event",
            "outbox.purge.hold",
            "outbox.purge.letter",
            "outbox.purge.pending",
            "outbox.shard.count",
            "outbox.shard.free",
            "outbox.shard.owned",
            "outbox.shard.pick",
            "outbox.write.pending",
        ),
    ),
    (
        ("postgres",),
        "one statement does the whole step; claims are rows of their own with a lock for their order",
        (
            "inbox.accept",
            "inbox.accept.one",
            "inbox.claim",
            "inbox.journal.fold",
            "outbox.claim",
            "outbox.claim.expired",
            "outbox.claim.lock",
            "outbox.events.discard",
            "outbox.keys.claim",
            "outbox.keys.turn",
            "outbox.shard.lapsed",
            "outbox.shard.wait",
            "outbox.write.call",
            "outbox.write.one_claimed",
            "outbox.write.plain",
        ),
    ),
    (
        ("postgres",),
        "one statement walks and claims there, and large writes wait as batches",
        ("outbox.fair.batches", "outbox.fair.claim", "outbox.fair.unmix"),
    ),
    (STEPPED, "several statements where an UPDATE cannot skip locked rows", ("outbox.fair.pick", "outbox.fair.walk")),
    (("postgres",), "Capabilities.whole_claims: a claim is a row of its own", ("outbox.settle.whole",)),
    (("postgres",), "Capabilities.advisory_keys: only PostgreSQL has such locks", ("outbox.keys.advisory",)),
    (
        ("postgres", "mysql"),
        "Capabilities.locked_keys: SQLite has one writer, and nothing to lease",
        ("outbox.keys.rows", "outbox.lease.free", "outbox.lease.sweep"),
    ),
    (
        ("mysql",),
        "one statement on PostgreSQL takes a lease, also a stale one",
        ("outbox.lease.expire", "outbox.lease.expired", "outbox.lease.mine", "outbox.lease.stale", "outbox.lease.take"),
    ),
    (
        ("mysql",),
        "no RETURNING on MySQL",
        ("inbox.accept.new", "inbox.accept.numbers", "inbox.adopt.enter", "inbox.adopt.entered"),
    ),
    (("postgres", "sqlite"), "the same, as MySQL accepts", ("inbox.adopt.seen",)),
    (("postgres", "sqlite"), "MySQL makes a table with its indexes", ("inbox.adopt.index",)),
    (("postgres",), "made of their column, then numbered", ("inbox.adopt.number",)),
    (
        ("postgres",),
        "otherwise a message is its own ledger entry",
        ("inbox.adopt.ids", "inbox.adopt.ids_at", "inbox.adopt.ids_sender"),
    ),
    (("postgres", "sqlite"), "MySQL replaces a view with other columns", ("inbox.adopt.renamed",)),
    (("mysql",), "a view with a forced index is not for finding", ("inbox.adopt.open",)),
    (("sqlite",), "a view that takes writes needs a trigger there", ("inbox.adopt.add", "inbox.adopt.change")),
    (("postgres",), "only there an inbox has such", ("inbox.drop.function", "inbox.drop.sequence")),
    (
        ("postgres",),
        "Capabilities.listen: only PostgreSQL wakes other processes",
        ("inbox.alert.notify", "instance.notify"),
    ),
    (("postgres", "mysql"), "sequence numbers are drawn before a batch is loaded", ("outbox.write.numbers",)),
    (("postgres", "sqlite"), "MySQL writes one event as a batch of one", ("outbox.write.one",)),
    (("postgres", "mysql"), "SQLite has no schemas", ("schema.namespace", "schema.drop_namespace")),
    (("mysql",), "GET_LOCK outlives the transaction, other locks end with it", ("schema.unlock",)),
    (("mysql",), "only there columns are hidden from who is not granted them", ("schema.seen",)),
    (("postgres",), "only there a statement can ask and then make tables", ("schema.unless",)),
    (("mysql",), "what endangers delivery there", ("doctor.collations", "doctor.engines")),
    (
        ("sqlite",),
        "only there a text column may hold what is no text",
        ("inbox.claim.read_raw", "outbox.claim.read_raw"),
    ),
    (("sqlite",), "what endangers delivery there", ("doctor.integrity", "doctor.journal")),
    (("postgres",), "what endangers delivery there", ("doctor.pending",)),
    (("postgres", "mysql"), "an embedded database has no server", ("doctor.server", "doctor.sessions")),
    (
        ("postgres", "mysql"),
        "change data capture: an embedded database has no log for others",
        ("cdc.facts", "cdc.snapshot", "cdc.unroutable"),
    ),
    (("postgres",), "publications and slots", ("cdc.heartbeat", "cdc.publication", "cdc.slots")),
    (("mysql",), "what a role may do is an attribute on PostgreSQL", ("cdc.privileges",)),
    (("mysql",), "elsewhere every two texts differ", ("kept.collation",)),
)

# Names put together at run time, and what they can be; all doctor.* are run in a loop.
EVENTS = ("newest", *(kind + what for kind in ("open", "dead", "done") for what in ("", "_count", "_numbers")))
COMPUTED = {
    "outbox.events.": EVENTS,
    "outbox.claim.": ("sizes", "payloads"),
    "inbox.claim.": ("sizes", "payloads"),
    "outbox.purge.": ("pending", "letter", "hold", "event"),
    "inbox.events.": EVENTS,
    "inbox.events.lock_": ("open", "dead", "done"),
    "inbox.purge.": ("done_count", "dead_count"),
    "inbox.adopt.": (
        *(
            "map",
            "number",
            "index",
            "theirs",
            "open",
            "change",
            "add",
            "message",
            "ids",
            "ids_at",
            "renamed",
            "ids_sender",
        ),
        *("pending", "dead"),
    ),
    "inbox.drop.": ("view", "table", "function", "sequence"),
}


@cache
def names(dialect: str) -> set[str]:
    """Of every product, and what they share."""
    return {name for product in PRODUCTS for name in texts_of(product, dialect).queries}


def test_every_query_is_in_every_dialect_or_excused() -> None:
    excused = {name: set(who) for who, _, group in EXCUSED for name in group}
    everywhere = set.union(*map(names, DIALECTS))
    wrong = {}
    for name in everywhere:
        have = {dialect for dialect in DIALECTS if name in names(dialect)}
        if have != excused.get(name, set(DIALECTS)):
            wrong[name] = sorted(have)
    assert wrong == {}, "write the query for the other dialects, or excuse it with a reason"


def test_no_excuse_is_stale_or_given_twice() -> None:
    given = Counter(name for _, _, group in EXCUSED for name in group)
    assert [name for name, times in given.items() if times > 1] == []
    assert set(given) - set.union(*map(names, DIALECTS)) == set()
    assert all(reason for _, reason, _ in EXCUSED)


@cache
def texts(folder: str = "") -> set[str]:
    return {
        node.value
        for name, tree in modules().items()
        if name.startswith(folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def asked() -> set[str]:
    """The names in `….sql["name"]`."""
    return {
        node.slice.value
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and _is_sql_table(node.value)
    }


def _is_sql_table(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "sql"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_query_is_used(dialect: str) -> None:
    computed = {prefix + part for prefix, parts in COMPUTED.items() if prefix in texts() for part in parts}
    looped = {name for name in names(dialect) if name.startswith("doctor.") and "doctor." in texts()}
    assert names(dialect) - texts() - computed - looped == set()


def test_every_query_of_topics_is_used() -> None:
    assert TOPICS - texts() == set()
    assert TOPICS & set.union(*map(names, DIALECTS)) == set()


def test_every_used_query_exists() -> None:
    assert len(asked()) > 30  # the check sees something
    assert asked() - set.union(*map(names, DIALECTS)) - TOPICS == set()
    ours = {text for text in texts("store/topics/") if re.fullmatch(r"topic\.[a-z_]+\.[a-z_.]+", text)}
    assert len(ours) > 30
    assert ours - TOPICS == set()


# -- what does not differ stands once -----------------------------------------------------------------

TYPE = re.compile(r"(:[a-z_]+)::[a-z0-9]+(?:\[\])?")
SLOT = re.compile(r"\{([a-z_]+)\}")


def said(text: str) -> str:
    """Without what the dialects need not agree on: line breaks, and types of parameters."""
    return TYPE.sub(r"\1", " ".join(text.split()))


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_text_that_does_not_differ_between_dialects_stands_once(product: str) -> None:
    folders = {folder: read(f"{product}/{folder}") for folder in ("", "stepped", *DIALECTS)}
    twice = set()
    for name in {name for found in folders.values() for name in (*found.queries, *found.slots)}:
        own = {folder: said(f.queries.get(name, ("", ""))[0] or f.slots.get(name, "")) for folder, f in folders.items()}
        own = {folder: text for folder, text in own.items() if text}
        if len(set(own.values())) < len(own) and own.keys() != {"postgres", "mysql"}:  # SQLite may lack it
            twice.add(name)
    assert twice == set(), "move it to the folder of what they have in common"


def test_every_slot_is_used_and_none_is_called_like_a_table() -> None:
    found = [texts_of(product, dialect) for product in PRODUCTS for dialect in DIALECTS]
    found.append(texts_of("topics", "postgres"))
    slots = {slot for texts in found for slot in texts.slots}
    used = [
        *(text for texts in found for text, _ in texts.queries.values()),
        *(s for t in found for s in t.slots.values()),
    ]
    tracked = {f"{word}_{kind}" for word in ("marks", "closed", "unmark") for kind in ("offset", "bitmap", "acks")}
    assert slots - set(SLOT.findall(" ".join(used))) - tracked == set()
    assert slots & set(Tables("t").substitutions('"') | InboxTables("t").substitutions('"')) == set()


LOCKS = re.compile(r"FOR UPDATE|FOR SHARE|LOCK IN SHARE MODE")
INNERMOST = re.compile(r"\([^()]*\)")


def filled(text: str, slots: Mapping[str, str]) -> str:
    """With its slots; names of tables stay as they are."""
    while (found := SLOT.sub(lambda slot: slots.get(slot[1], slot[1]), text)) != text:
        text = found
    return text


def outermost(text: str) -> str:
    """Without what is in parentheses."""
    while (found := INNERMOST.sub("", text)) != text:
        text = found
    return text


def locks_a_list(text: str) -> bool:
    return LOCKS.search(text) is not None and "JSON_TABLE" in outermost(text)


def test_no_list_stands_beside_rows_that_are_locked() -> None:
    """MySQL refuses it, MariaDB does not (error 3569). The shared products are read with each."""
    assert locks_a_list("SELECT p.a FROM JSON_TABLE(:x, '$[*]' COLUMNS (a bigint PATH '$')) s JOIN p FOR UPDATE")
    assert not locks_a_list("SELECT p.a FROM (SELECT a FROM JSON_TABLE(:x, '$')) s JOIN p FOR UPDATE")
    shared = texts_of("shared", "mysql")
    wrong, looked_at = [], 0
    for product in PRODUCTS:
        own = texts_of(product, "mysql")
        slots = shared.slots | texts_of(product.partition("/")[0], "mysql").slots | own.slots
        for name, (text, _) in own.queries.items():
            whole = filled(text, slots)
            looked_at += LOCKS.search(whole) is not None and "JSON_TABLE" in whole
            if locks_a_list(whole):
                wrong.append(name)
    assert looked_at > 10
    assert wrong == [], "put the JSON_TABLE into a query of its own: FROM (SELECT j.* FROM JSON_TABLE(…) j) s"


# -- SQL is SQL -------------------------------------------------------------------------------------

VERBS = re.compile(
    r"^\s*(SELECT\s|INSERT INTO|UPDATE\s+\S+\s+SET|DELETE FROM|ALTER TABLE|LOCK TABLE|TRUNCATE|COPY \S+ (FROM|\()"
    r"|(CREATE|DROP) (TABLE|INDEX|SCHEMA|VIEW|DATABASE|USER)|LISTEN\b|NOTIFY\b|SET (LOCAL|SESSION)\b|PRAGMA\b)"
)
# Where text may become SQL, and why. Identifiers are checked in store/names.py, the quoting module.
BUILDERS = {"store/names.py": "", "store/schema.py": "CREATE SCHEMA with the name that Tables has checked"}


def builds_sql(node: ast.AST) -> bool:
    """An f-string, `%`, `+` or .format() whose text begins like a statement."""
    if isinstance(node, ast.JoinedStr):
        first = node.values[0] if node.values else None
        variable = any(isinstance(value, ast.FormattedValue) for value in node.values)
        return variable and is_sql(first)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
        return is_sql(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return is_sql(node.func.value)
    return False


def is_sql(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(VERBS.match(node.value))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('f"SELECT {x}"', True),
        ('f"SELECT 1"', False),
        ('"SELECT %s" % x', True),
        ('"DELETE FROM " + x', True),
        ('"INSERT INTO {}".format(x)', True),
        ('f"select the best of {x}"', False),
        ('f"LISTEN {x}"', True),
    ],
)
def test_the_check_itself(code: str, expected: bool) -> None:
    assert any(builds_sql(node) for node in ast.walk(ast.parse(code))) == expected


def test_no_sql_is_built_from_strings() -> None:
    offenders = {
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        if not name.startswith("testing/") and name not in BUILDERS
        for node in ast.walk(tree)
        if builds_sql(node) and isinstance(node, ast.expr)
    }
    assert offenders == set(), "put the text into a .sql file and bind parameters"


def test_no_permission_is_stale() -> None:
    for name, reason in BUILDERS.items():
        if reason:
            assert any(builds_sql(node) for node in ast.walk(modules()[name])), f"{name} builds no SQL any more"

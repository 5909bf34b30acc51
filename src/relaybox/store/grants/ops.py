"""The statements that grant a role what it needs, and what the current role lacks or has too much for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import SchemaMissing
from ...op import Op, Query
from ..doctor import Finding
from ..feeds import open_feed_store
from ..inbox import InboxStore
from ..outbox.store import OutboxStore
from ..queries import fill, qualified, texts
from ..schema import Schema
from . import COUNTING, FED, WRITING, Grant, Statements, atoms, feeds, granted, queue, write_function

if TYPE_CHECKING:
    from ..topics.store import TopicStore

Named = tuple[Grant, Mapping[str, str]]  # and the names that its part is looked up in


def asked(dialect: str, name: str, **words: str) -> Query:
    text, answer = texts("grants", dialect).queries[name]
    text = fill(text, words)
    return Query(name, qualified(text) if dialect == "postgres" else text, answer)


def home_of(store: Schema) -> Op[tuple[str, str]]:
    """The schema of the tables, and the role that asks."""
    table = store.tables.substitutions(store.quote)["migration"]
    found = (yield asked(store.dialect, "grants.home", table=table).bind()).rows
    if not found:
        raise SchemaMissing(f"the tables of {store.tables.event!r} are not in this database; {store.advice}")
    return store.tables.schema or found[0][0], found[0][1]


def _named(product: str, store: Schema, role: str, home: str) -> list[Named]:
    names = replace(store.tables, schema=home).substitutions(store.quote)
    return [(grant, names) for grant in granted(product, role, store.dialect)]


def _of_topics(store: TopicStore, role: str, home: str) -> Op[list[Named]]:
    """The tables of topics in general, and of each topic there is."""
    if not (yield from store.applied()):
        return []
    tables, found = replace(store.tables, schema=home), _named("topics", store, role, home)
    fed = yield from feeds.fed(store, role, home)
    for row in (yield from store.topics()):
        names = tables.log(row.id, store.quote)
        if row.topic.tracking == "rows":
            found += [(grant, names) for grant in queue(role)]
            continue
        there = {"bitmap": {"mark"}, "acks": {"mark", "ack"}}.get(row.topic.tracking, set())
        there |= {"log", "log_seq", "log_rest"}
        found += [(grant, names) for grant in granted("log", role, store.dialect) if grant.part in there]
        found += [(grant, names) for grant in FED if row.id in fed]
    kept = open_feed_store(store.dialect, store.tables)
    return found + (_named("feeds", kept, role, home) if (yield from kept.there()) else [])


def _kind(product: str, store: Schema) -> Op[str]:
    """What is granted of an adopted inbox is something else."""
    adopted = isinstance(store, InboxStore) and (yield from store.know()) is not None
    return "adopted" if adopted else product


def wanted(product: str, store: Schema, topics: TopicStore | None, role: str) -> Op[tuple[str, str, list[Named]]]:
    home, me = yield from home_of(store)
    found = _named(product, store, role, home)
    if topics is not None:
        found += yield from _of_topics(topics, role, home)
    return home, me, found


def statements(product: str, store: Schema, topics: TopicStore | None, role: str, to: str) -> Op[list[str]]:
    """In the order in which the owner of the tables runs them. Nothing where the role has no business here."""
    words = Statements(store.dialect, to, store.quote)
    product = yield from _kind(product, store)
    home, _, found = yield from wanted(product, store, topics, role)
    if not found:
        return []
    if role == "writer" and (yield from _capped(store)):
        found.append((COUNTING, replace(store.tables, schema=home).substitutions(store.quote)))
    lines = []
    if store.dialect == "postgres":
        lines.append(words.fill("grants.schema", f"{store.quote}{home}{store.quote}"))
    if product == "outbox" and role in WRITING and store.dialect == "postgres":
        lines += _function(store, home, words)
    for grant, names in found:
        lines += words.grant([grant], names)
    return lines + [need.grant(words) for need in (yield from feeds.needed(topics, role, home))]


def _capped(store: Schema) -> Op[bool]:
    """Whether writers may have to count: only caps and fair claims need the index, and a service sees `pending`
    anyway. On PostgreSQL a writer calls the function, which knows no caps."""
    return store.dialect == "mysql" and isinstance(store, OutboxStore) and not (yield from store.fair_plan())


def _function(store: Schema, home: str, words: Statements) -> Iterator[str]:
    here = type(store)(replace(store.tables, schema=home))
    parameters, body = write_function(here.sql["outbox.write.many"].text)
    name = here.tables.substitutions(store.quote)["write"]
    types = ", ".join(parameter.partition(" ")[2] for parameter in parameters.split(", "))
    yield words.fill("grants.write", f"{name}({parameters})", body=body)
    yield words.fill("grants.private", f"{name}({types})")
    yield words.fill("grants.function", f"{name}({types})")


def compare(product: str, store: Schema, topics: TopicStore | None, role: str) -> Op[list[Finding]]:
    """What the current role lacks for its job, and what it may do besides. PostgreSQL alone can say."""
    product = yield from _kind(product, store)
    home, me, found = yield from wanted(product, store, topics, role)
    need, names_of = defaultdict[str, dict[str, None]](dict), {}
    for grant, names in found:
        bare = names[f"{grant.part}_name"]
        need[bare][grant.privileges] = None
        names_of[bare] = names[grant.part]
    tables = sorted({*need, *_all_tables(product, store)})
    rows = (yield asked(store.dialect, "grants.held").bind(schema=home, tables=tables)).rows
    columns, has = defaultdict[str, list[str]](list), defaultdict[str, set[tuple[str, str]]](set)
    for table, column, privilege, granted_ in rows:
        columns[table] += [column] if column and privilege == "SELECT" else []
        if granted_:
            has[table].add((privilege, column))
    check, words, findings = f"role {role}", Statements(store.dialect, me, store.quote), list[Finding]()
    sequences = {row[0] for row in rows if row[2] == "USAGE"}
    for table in sorted(columns):
        place = names_of.get(table) or f"{store.quote}{home}{store.quote}.{store.quote}{table}{store.quote}"
        kind = "sequence" if table in sequences else "table"
        must = set().union(*(atoms(privileges, columns[table]) for privileges in need[table]))
        if missing := must - has[table]:
            fix = words.fill(f"grants.{kind}", place, privileges=", ".join(need[table]))
            findings.append(Finding("critical", check, f"{me} lacks {_told(missing)} on {table}", fix))
        if extra := has[table] - must:
            fix = words.fill(
                "grants.revoke", f"{kind.upper()} {place}", privileges=", ".join(sorted({p for p, _ in extra}))
            )
            text = f"{me} has {_told(extra)} on {table}, which it does not need"
            findings.append(Finding("warning", check, text, fix))
    if product == "outbox":
        findings += yield from _of_function(store, home, me, role)
    for lack in (yield from feeds.needed(topics, role, home)):
        if not lack.held:
            text = f"{me} lacks {lack.privileges} on {lack.object}, by which a feed is refreshed"
            findings.append(Finding("critical", check, text, lack.grant(words)))
    return findings or [Finding("ok", check, f"{me} has what a {role} needs of {store.tables.event}, and no more")]


def _of_function(store: Schema, home: str, me: str, role: str) -> Op[list[Finding]]:
    name = store.tables.substitutions(store.quote)["write_name"]
    rows = (yield asked(store.dialect, "grants.callable").bind(schema=home, function=name)).rows
    may = any(row[0] for row in rows)
    if role in WRITING and not may:
        fix = f"run what `relaybox grants {role} --to {me}` prints"
        return [Finding("critical", f"role {role}", f"{me} may not call {name}, or it is not there", fix)]
    if may and role not in WRITING:
        fix = f"REVOKE EXECUTE ON FUNCTION {name} FROM {me}"
        return [Finding("warning", f"role {role}", f"{me} may call {name}, which it does not need", fix)]
    return []


def _all_tables(product: str, store: Schema) -> list[str]:
    names = store.tables.substitutions(store.quote)
    parts = {grant.part for role in ("operator", "reader") for grant in granted(product, role, store.dialect)}
    return sorted(names[f"{part}_name"] for part in parts)


def _told(found: set[tuple[str, str]]) -> str:
    by_privilege = defaultdict(list)
    for privilege, column in sorted(found):
        by_privilege[privilege].append(column)
    return ", ".join(f"{p} ({', '.join(c)})" if 0 < len(c) < 4 and c[0] else p for p, c in by_privilege.items())


def open_schemas(dialect: str) -> Op[Sequence[str]]:
    """Schemas in which strangers may make objects that sessions would find."""
    return [row[0] for row in (yield asked(dialect, "grants.open").bind()).rows]


def open_databases(dialect: str) -> Op[Sequence[str]]:
    """The database, if strangers may make schemas in it that sessions would look into first."""
    return [row[0] for row in (yield asked(dialect, "grants.schemas").bind()).rows]

"""Row-level security by tenant, on PostgreSQL: the statements that make it, what of it is missing, who is bound by it.

    tables with a tenant_id     a row is its tenant's, which the setting `relaybox.tenant` of the transaction names
    pending and dead            a row is that of its event; of pending only the text of an error is hidden
    pending and claim           who is bound adds rows, and changes none: it would settle what it cannot see
    our views                   ask with the rights of who looks (security_invoker)

Roles that serve all tenants, workers say, have a policy of their own. Everybody else is bound, the owner too. Other
tables have numbers and times, or are granted to nobody who is bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...errors import ConfigError, StoreError
from ...op import Op
from ..doctor import Finding
from ..inbox import InboxStore
from ..names import identifier
from ..queries import fill, texts
from ..schema import Schema
from ..topics import VIEWS
from . import on_postgres
from .ops import asked, home_of

if TYPE_CHECKING:
    from ..topics.store import TopicStore

FIRST = 150000  # the release whose views can ask with the rights of who looks
BOUND, ADDED, ALL, OWNER = "relaybox_tenant", "relaybox_added", "relaybox_all", "relaybox_owner"  # policies
FIX = "run what `relaybox grants --tenants` prints"

_TABLES: Mapping[str, Mapping[str, str]] = {  # a product's tables, and which rows of them are a tenant's
    "outbox": {"event": "own", "pending": "text", "claim": "left", "dead": "part"},
    "topics": {"parked": "own"},
    "log": {"log": "own"},
    "inbox": {"message": "own", "pending": "text", "dead": "part"},
}
_VIEWS: Mapping[str, Sequence[str]] = {
    "outbox": ("status",),
    "topics": VIEWS,
    "inbox": ("seen", "status", "waiting", "letters", "stats", "health"),
}
_EVENT = {"outbox": "event", "queue": "queue_event", "inbox": "message"}  # what a row belongs to


class Guarded(NamedTuple):
    """One table or view of the recipe; `rule` is None for a view."""

    place: str
    name: str
    rule: str | None
    event: str  # the table that its rows belong to


def _guarded(product: str, names: Mapping[str, str], prefix: str = "") -> Iterator[Guarded]:
    event = names.get(_EVENT.get("queue" if prefix else product, ""), "")
    for part, rule in _TABLES.get(product, {}).items():
        yield Guarded(names[f"{prefix}{part}"], names[f"{prefix}{part}_name"], rule, event)
    for view in _VIEWS.get(product, ()):
        yield Guarded(names[f"{prefix}{view}"], names[f"{prefix}{view}_name"], None, event)


def _of_product(product: str, store: Schema, topics: TopicStore | None, home: str) -> Op[list[Guarded]]:
    if isinstance(store, InboxStore) and (yield from store.know()) is not None:
        return []  # the rows are in a table of somebody else's
    found = list(_guarded(product, replace(store.tables, schema=home).substitutions(store.quote)))
    if topics is not None and (yield from topics.applied()):
        tables = replace(topics.tables, schema=home)
        found += _guarded("topics", tables.substitutions(store.quote))
        for row in (yield from topics.topics()):
            names = tables.log(row.id, store.quote)
            found += _guarded("outbox", names, "queue_") if row.topic.tracking == "rows" else _guarded("log", names)
    return found


def tenants(product: str, store: Schema, topics: TopicStore | None, to: Sequence[str]) -> Op[list[str]]:
    """The statements of the recipe, in the order in which the owner of the tables runs them; safe to run again.

    to  the roles of the database that serve all tenants
    """
    on_postgres(store.dialect)
    roles = [identifier("role name", name) for name in to]
    table = store.tables.substitutions(store.quote)["migration"]
    home, _ = yield from home_of(store)
    version, owner = (yield asked(store.dialect, "tenants.server", table=table).bind()).rows[0]
    if version < FIRST:
        raise ConfigError(
            f"row-level security by tenant needs PostgreSQL 15 or newer, this is {version // 10000}: views of older "
            "ones show what their owner may see"
        )
    found = yield from _of_product(product, store, topics, home)
    return [line for one in found for line in _lines(one, roles, owner, store.quote)]


def _lines(one: Guarded, roles: Sequence[str], owner: str, quote: str) -> Iterator[str]:
    known = texts("grants", "postgres")

    def line(name: str, policy: str = "", to: Sequence[str] = ()) -> str:
        words = {"object": one.place, "event": one.event, "policy": policy}
        words["role"] = ", ".join(f"{quote}{role}{quote}" for role in to)
        words |= {name: fill(text, words) for name, text in known.slots.items()}
        return fill(known.queries[f"tenants.{name}"][0], words)

    if one.rule is None:
        yield line("view")
        return
    for policy in (BOUND, ADDED, ALL, OWNER):
        yield line("again", policy)
    yield line(one.rule, BOUND)
    if one.rule in ("text", "left"):
        yield line("added", ADDED)
    if others := [role for role in roles if role != owner]:
        yield line("all", ALL, others)
    if owner in roles:
        yield line("owner", OWNER, [owner])
    yield line("enable")


def examine(product: str, store: Schema, topics: TopicStore | None) -> Op[list[Finding]]:
    """What is missing of the recipe where it was begun, and whom it does not bind; nothing where it was not."""
    home, _ = yield from home_of(store)
    guarded = yield from _of_product(product, store, topics, home)
    query = asked(store.dialect, "tenants.found").bind(schema=home, names=[one.name for one in guarded])
    rows = (yield query).rows
    if not any(row[4] for row in rows):
        return []
    open_ = [row[0] for row in rows if not row[3]]
    free = sorted({row[1] for row in rows if row[2]})
    findings = []
    if open_:
        text = f"rows of every tenant can be seen or written in {', '.join(open_)}, row security is on for the others"
        findings.append(Finding("critical", "tenants", text, FIX))
    for name, policies in ((row[0], row[5]) for row in rows if row[5]):
        text = f"{name} has policies that are not ours, which let more be seen: {', '.join(policies)}"
        findings.append(Finding("warning", "tenants", text, f"DROP POLICY … ON {name}, unless somebody means it"))
    if free:
        text = f"{', '.join(free)} owns the tables and passes row security by, and so does what runs with its rights"
        fix = "; ".join(f"ALTER ROLE {name} NOSUPERUSER NOBYPASSRLS" for name in free)
        findings.append(Finding("critical", "tenants", text, f"{fix}, or give the tables to another role"))
    return findings or [Finding("ok", "tenants", f"{store.tables.event}: each tenant is kept to its own rows")]


def sees_all(store: Schema, part: str) -> Op[None]:
    """StoreError: the current role sees one tenant's rows alone, and would take the others' for deleted."""
    if store.dialect != "postgres":
        return
    name = store.tables.substitutions(store.quote)[part]
    rows = (yield asked(store.dialect, "tenants.bound").bind(names=[name])).rows
    if rows:
        raise StoreError(
            f"role {rows[0][1]!r} is bound to one tenant's rows of {rows[0][0]} by row-level security, and this serves "
            f"all tenants: name the role in `relaybox grants --tenants --to {rows[0][1]}`, with the others that do"
        )

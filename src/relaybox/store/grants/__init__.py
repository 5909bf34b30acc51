"""What each role may do: privileges on the tables of a product, and the statements that grant them.

    writer     writes events. On PostgreSQL by a function: it reads no payload, and touches nothing that schedules
    worker     delivers events, processes messages, consumes topics; a relay is one too
    receiver   puts messages into an inbox
    maintainer keeps topics: ticks, cleanup, alerts
    operator   a worker that also replays, discards, purges and erases, and leaves its name in the audit table
    reader     looks at everything
    dashboard  looks at everything but payloads and headers
    tenant     writes events and looks at them, bound to its own by row-level security (tenants.py)

What makes or changes tables (migrate, topics, their partitions) is for the owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from ...errors import ConfigError, UnsupportedByEngine
from ..event_rows import EVENT_COLUMNS
from ..names import identifier
from ..queries import fill, texts

DatabaseRole = Literal[
    "writer", "worker", "relay", "receiver", "maintainer", "operator", "reader", "dashboard", "tenant"
]
ROLES: tuple[DatabaseRole, ...] = get_args(DatabaseRole)
Securable = Literal["table", "sequence"]

WRITING = ("writer", "tenant")  # into an outbox by the function
ADVISED = ("operator", "reader")  # who may ask which tracking fits a topic
SEE = "SELECT"
ALL = "SELECT, INSERT, UPDATE, DELETE"
_SECRET = {"payload", "headers"}
_SHOWN = tuple(column for column in EVENT_COLUMNS if column not in _SECRET)
_LOGGED = tuple(column for column in _SHOWN if column != "deliver_at")
_WAITING = ("group_id", "shard", "key_hash", "state", "attempts", "due", "token", "owner", "until")
_ADDED = "INSERT, SELECT (seq, event_id)"  # written, and found again by its id


class Grant(NamedTuple):
    """`privileges` as in SQL, with columns in parentheses, on one table or sequence: the slot that names it."""

    part: str
    privileges: str
    kind: Securable = "table"


Matrix = Mapping[str, Sequence[tuple[str, str]]]  # a role: (privileges, the parts they are on)


def _seen(columns: Sequence[str]) -> str:
    return SEE + f" ({', '.join(columns)})"


_KEPT = ("SELECT, DELETE, UPDATE (deliver_at)", "event")  # who purges locks, and who locks must be able to update
_CHURN = "pending claim dead instance shard hold lease"
_INBOX_WORK = "pending done dead state meta journal totals alert turn instance"
_INBOX_VIEWS = "seen waiting letters stats health"
_ADOPTED_VIEWS = "waiting letters stats health"
_THEIRS = ("SELECT, UPDATE (processed_at, retry_count, error)", "theirs")  # with the rights of who adopted it
_STATE = "tick head group cursor range parked member term latch promise alert"
_VIEWS = "group_status group_lag member_status active_range"
_MESSAGE = (*(c for c in EVENT_COLUMNS if c not in {*_SECRET, "deliver_at", "created_at"}), "sender", "received_at")

MATRICES: Mapping[str, Matrix] = {
    "outbox": {
        "writer": [(SEE, "migration"), ("SELECT (seq, event_id)", "event"), ("SELECT (expires_at)", "instance")],
        "worker": [(SEE, "migration"), _KEPT, (ALL, _CHURN)],
        "maintainer": [(SEE, "migration")],
        "operator": [
            *[(SEE, "migration status"), _KEPT],
            (ALL, f"{_CHURN} audit"),
            ("USAGE", "audit_id_seq"),
        ],
        "reader": [(SEE, f"migration event status audit {_CHURN}")],
        "dashboard": [(SEE, f"migration audit {_CHURN}"), (_seen(_SHOWN), "event")],
        "tenant": [(SEE, "migration event status pending claim dead instance")],
    },
    "topics": {
        "writer": [(SEE, "migration topic"), ("SELECT (group_id, expires_at)", "member")],
        "worker": [(SEE, "migration incarnation"), ("SELECT, UPDATE", "topic"), (ALL, _STATE)],
        "maintainer": [(SEE, "migration incarnation"), ("SELECT, UPDATE", "topic"), (ALL, _STATE)],
        "operator": [(SEE, f"migration incarnation {_VIEWS}"), (ALL, f"topic {_STATE}")],
        "reader": [(SEE, f"migration incarnation topic {_VIEWS} {_STATE}")],
        "dashboard": [
            (SEE, f"migration incarnation topic {_VIEWS} {_STATE.replace(' parked', '')}"),
            (
                _seen((*_WAITING, "last_error", "parked_at", "dead_at", *_LOGGED)),
                "parked",
            ),
        ],
        "tenant": [(SEE, "migration topic parked"), ("SELECT (group_id, expires_at)", "member")],
    },
    "log": {
        "writer": [("INSERT, SELECT (seq, event_id, shard)", "log"), ("INSERT", "mark"), ("SELECT, USAGE", "log_seq")],
        "worker": [(SEE, "log log_seq"), (ALL, "mark ack")],
        "maintainer": [
            *[(SEE, "log log_seq"), (ALL, "mark ack")],
            ("SELECT, DELETE, UPDATE (aggregate_type)", "log_rest"),  # what is in no partition
        ],
        "operator": [("SELECT, DELETE", "log"), (SEE, "log_seq"), (ALL, "mark ack")],
        "reader": [(SEE, "log log_seq mark ack")],
        "dashboard": [
            (_seen(("xid", "shard", *_LOGGED)), "log"),
            (SEE, "log_seq mark ack"),
        ],
        "tenant": [("INSERT, SELECT", "log"), ("INSERT", "mark"), ("SELECT, USAGE", "log_seq")],
    },
    "feeds": {  # made by the owner of the tables that their queries read; of refreshing, feeds.py has the rest
        "writer": [(SEE, "migration")],
        "worker": [
            (SEE, "migration feed feed_schedule feed_source feed_delta feed_chunk feed_hand_off"),
            ("SELECT, INSERT", "feed_consumed"),
        ],
        "maintainer": [
            (SEE, "migration feed_source feed_hand_off feed_consumed"),
            ("SELECT, UPDATE", "feed feed_schedule"),
            ("SELECT, INSERT, DELETE", "feed_stale feed_delta feed_chunk"),
        ],
        "operator": [
            (SEE, "migration feed feed_schedule feed_source feed_stale feed_delta feed_chunk feed_latest"),
            ("SELECT, INSERT, DELETE", "feed_hand_off feed_consumed"),
            ("UPDATE (n)", "feed_delta"),  # who locks must be able to update
        ],
        "reader": [
            (SEE, "migration feed feed_schedule feed_source feed_stale feed_delta feed_chunk feed_row"),
            (SEE, "feed_hand_off feed_consumed feed_latest"),
        ],
        "dashboard": [
            (SEE, "migration feed feed_schedule feed_source feed_stale feed_delta feed_hand_off feed_consumed"),
            (_seen(("feed_id", "n", "chunk", "op", "rows")), "feed_chunk"),
        ],
        "tenant": [(SEE, "migration")],
    },
    "inbox": {
        "receiver": [
            (SEE, "migration meta seen"),
            ("INSERT, SELECT (seq, sender, event_id, event_type, received_at)", "message"),
            ("INSERT", "pending journal"),
            ("USAGE", "seq"),
            ("SELECT (expires_at)", "instance"),
        ],
        "worker": [(SEE, f"migration {_INBOX_VIEWS}"), ("SELECT, UPDATE, DELETE", "message"), (ALL, _INBOX_WORK)],
        "operator": [
            *[(SEE, f"migration status {_INBOX_VIEWS}"), ("SELECT, UPDATE, DELETE", "message")],
            (ALL, f"{_INBOX_WORK} audit"),
            ("USAGE", "audit_id_seq"),
        ],
        "reader": [(SEE, f"migration message status audit {_INBOX_VIEWS} {_INBOX_WORK}")],
        "dashboard": [(SEE, f"migration audit stats health seen {_INBOX_WORK}"), (_seen(_MESSAGE), "message")],
        "tenant": [(SEE, "migration meta message pending done dead instance status")],
    },
    "adopted": {  # what others put into a table of theirs
        "receiver": [
            (SEE, "migration meta message"),
            ("INSERT, SELECT", "theirs map seen"),
            ("INSERT", "pending journal"),
            ("SELECT (expires_at)", "instance"),
        ],
        "worker": [(SEE, f"migration message {_ADOPTED_VIEWS}"), _THEIRS, (ALL, f"map seen {_INBOX_WORK}")],
        "operator": [
            *[(SEE, f"migration message status {_ADOPTED_VIEWS}"), _THEIRS],
            (ALL, f"map seen audit {_INBOX_WORK}"),
            ("USAGE", "audit_id_seq"),
        ],
        "reader": [(SEE, f"migration message status audit theirs map seen {_ADOPTED_VIEWS} {_INBOX_WORK}")],
        "dashboard": [
            *[(SEE, f"migration audit stats health seen map {_INBOX_WORK}"), (_seen(_MESSAGE), "message")],
            (_seen(("id", "processed_at")), "theirs"),
        ],
        "tenant": [(SEE, "migration meta")],  # their rows have none
    },
    "guard": {
        "worker": [(SEE, "migration"), (ALL, "guard")],
        "operator": [(SEE, "migration"), (ALL, "guard")],
        "reader": [(SEE, "migration guard")],
        "dashboard": [(SEE, "migration guard")],
    },
    "vault": {  # what is wrapped there opens with a master key alone
        "writer": [(SEE, "migration"), ("SELECT, INSERT", "data_key")],
        "receiver": [(SEE, "migration"), ("SELECT, INSERT", "data_key")],
        "worker": [(SEE, "migration data_key")],
        "operator": [(SEE, "migration"), ("SELECT, UPDATE", "data_key"), (ALL, "audit"), ("USAGE", "audit_id_seq")],
        "reader": [(SEE, "migration audit data_key")],
        "dashboard": [(SEE, "migration audit"), (_seen(("id", "master", "created_at", "erased_at")), "data_key")],
    },
}
# MySQL has no functions that return what they wrote: its writer inserts, and may put any row into `pending`.
_MYSQL: Mapping[str, Matrix] = {
    "outbox": {"writer": [(SEE, "migration"), (_ADDED, "event"), ("INSERT", "pending")]},
    "inbox": {
        "receiver": [
            (SEE, "migration meta"),
            ("INSERT, SELECT (seq, sender, event_id)", "message"),
            ("INSERT", "pending journal"),
            ("INSERT, SELECT", "seen"),
        ],
        **{role: [*MATRICES["inbox"][role], (ALL, "seen")] for role in ("worker", "operator")},  # a table there
    },
}
FED = (Grant("log", "INSERT"), Grant("log_seq", "USAGE", "sequence"))  # a maintainer writes deltas there
COUNTING = Grant("pending", "SELECT (tenant)")  # on MySQL, of a writer whose tenants have caps
_ONLY_POSTGRES = {"claim", "seq", "audit_id_seq"}
_SEQUENCES = {"seq", "log_seq", "audit_id_seq"}


def granted(product: str, role: str, dialect: str) -> list[Grant]:
    """What a role needs of a product; nothing, if it has no business with it."""
    if role == "tenant":
        on_postgres(dialect)
    matrix = {**MATRICES[product], **(_MYSQL.get(product, {}) if dialect == "mysql" else {})}
    lines = matrix.get("worker" if role == "relay" else role, ())
    return [
        Grant(part, privileges, "sequence" if part in _SEQUENCES else "table")
        for privileges, parts in lines
        for part in parts.split()
        if dialect == "postgres" or part not in _ONLY_POSTGRES
    ]


def queue(role: str) -> list[Grant]:
    """Of a queue tracked by rows, which is an outbox of its own. Its writer inserts: a version is checked in the same
    statement, which no function of the outbox does."""
    job = "worker" if role == "maintainer" else role  # it purges
    own = [Grant(f"queue_{part}", what, kind) for part, what, kind in granted("outbox", job, "postgres")]
    if role in ADVISED:  # how much is written is told by the numbers that were drawn
        own.append(Grant("queue_seq", SEE, "sequence"))
    if role in WRITING:
        added = [Grant("queue_event", "INSERT"), Grant("queue_pending", "INSERT"), Grant("queue_claim", "INSERT")]
        own += [*added, Grant("queue_seq", "USAGE", "sequence")]
    return [grant for grant in own if not grant.part.startswith("queue_audit")]


def on_postgres(dialect: str) -> None:
    if dialect != "postgres":
        raise UnsupportedByEngine(
            f"row-level security is PostgreSQL's, and this is {dialect}: give each tenant an outbox and inboxes of its "
            "own, and a role that is granted those"
        )


def checked_role(role: str) -> DatabaseRole:
    for known in ROLES:
        if known == role:
            return known
    raise ConfigError(f"expected a role to be one of {', '.join(ROLES)}, got {role!r}")


class Statements:
    """The statements of a dialect, for one role of the database."""

    def __init__(self, dialect: str, to: str, quote: str) -> None:
        if dialect == "sqlite":
            raise ConfigError(
                "SQLite has no roles: who may open the file may do everything; guard it by its permissions"
            )
        self._texts = texts("grants", dialect).queries
        self._role = f"{quote}{identifier('role name', to)}{quote}"

    def grant(self, grants: Sequence[Grant], names: Mapping[str, str]) -> Iterator[str]:
        for part, privileges, kind in grants:
            yield self.fill(f"grants.{kind}", names[part], privileges=privileges)

    def fill(self, name: str, object: str, **words: str) -> str:
        return fill(self._texts[name][0], {"object": object, "role": self._role, **words})


_ARRAY = re.compile(r":([a-z_]+)::([a-z0-9]+\[\])")
_OTHER = re.compile(r"(?<![:\w]):([a-z_]+)")
# What a caller of the function does not decide: it writes for others to claim, and at the time of the database.
_DECIDED = {"now": "NULL::timestamptz", "owner": "NULL", "token": "0::bigint", "lease": "0"}


def write_function(text: str) -> tuple[str, str]:
    """Its parameters and its body, from the statement that writes a batch."""
    parameters = dict(_ARRAY.findall(text))
    body = _OTHER.sub(lambda found: _DECIDED[found[1]], _ARRAY.sub(r"\1", text))
    return ", ".join(f"{name} {type}" for name, type in parameters.items()), body


def atoms(privileges: str, columns: Sequence[str]) -> set[tuple[str, str]]:
    """(privilege, column) of what is granted; what has no columns has the column ''."""
    found = set()
    for privilege, chosen in re.findall(r"([A-Z]+)(?: \(([a-z_, ]+)\))?", privileges):
        wanted = chosen.split(", ") if chosen else ([""] if privilege in ("DELETE", "USAGE") else columns or [""])
        found |= {(privilege, column) for column in wanted}
    return found

"""Writes integrations/dbt/macros/made.sql: what relaybox does to make a topic, a group and an inbox, as macros of dbt.
`--check` only compares.

The ops themselves are run here, against answers that are written below, and what they ask is written down. So the dbt
package sends the statements that Python sends. Names and values that are known later are placeholders.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from generated import write_or_check

from relaybox import Feed, Settings, StartFrom, Topic
from relaybox.clock import SYSTEM_CLOCK
from relaybox.drivers.rehearsal import Rehearsal
from relaybox.errors import NotFound
from relaybox.op import Copy, Op, Result, Statement, run
from relaybox.store.inbox import InboxStore, InboxTables, open_inbox_store
from relaybox.store.inbox.order import Order
from relaybox.store.names import Tables
from relaybox.store.outbox import open_store
from relaybox.store.schema import Schema
from relaybox.store.topics import Start, TopicRow, open_topic_store
from relaybox.store.topics.store import TopicStore
from relaybox.topics.join import Joining

HEAD = "{# Written by scripts/dbt_macros.py from what relaybox does itself; do not edit. #}\n"

# Longer than the room for an outbox's name in the names made from it: so the cut name is told from the whole one.
OUTBOX, SCHEMA, INBOX = f"zz_outbox_{'z' * 30}", "zz_schema", "zz_inbox"
SHARDS = 997
INTERVAL = timedelta(seconds=7007)
TOPIC_ID, GROUP_ID, TICK, NEWEST = 7_700_001, 7_700_002, 7_700_003, 7_700_004
AT = datetime(2007, 7, 7, tzinfo=UTC)
NOW = """' || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') || '"""

_PARAM = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_JINJA = re.compile(r"\{[{%#]|[}%#]\}")


class Late(str):
    """A value that dbt knows."""

    __slots__ = ()


def literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case Late():
            return f"{{{{ {value} }}}}"
        case bool() | int() | float():
            return str(value).lower()
        case timedelta():
            return f"interval '{value.days} days {value.seconds} seconds'"
        case str():
            return "'" + value.replace("'", "''") + "'"
    raise TypeError(f"no literal for {value!r}")


@dataclass
class Script:
    """What an op asks. `answers`: rows by the name of a query; `known`: names of dbt for what a query answers."""

    answers: Mapping[str, Sequence[Sequence[Any]]]
    known: dict[str, str]
    late: dict[str, Late] = field(default_factory=dict)  # values by the name of a parameter
    lines: list[str] = field(default_factory=list)

    def execute(self, statement: Statement | Copy) -> Result:
        assert isinstance(statement, Statement)
        name = statement.query.name
        if (variable := self.known.get(name)) is not None:
            self.lines.append(f"{{% set {variable} = relaybox.answer({self.written(statement)}) %}}")
        elif not name.endswith((".find", ".list", ".exists", ".applied")):  # which only look
            self.lines.append(f"{{% do run_query({self.written(statement)}) %}}")
        rows = self.answers.get(name, [])
        return Result(rows, len(rows))

    def written(self, statement: Statement) -> str:
        text, params = statement.query.compiled("named")[0], statement.params | self.late
        assert not _JINJA.search(text), statement
        return _quoted(_PARAM.sub(lambda found: literal(params[found[1]]), text).strip())


def _quoted(text: str) -> str:
    """As a text of Jinja, in which names are put together again."""
    parts = re.split(r"\{\{ (.*?) \}\}", later(text))
    shown = [
        "'" + part.replace("\\", "\\\\").replace("'", "\\'") + "'" if n % 2 == 0 else part
        for n, part in enumerate(parts)
    ]
    return " ~ ".join(part for part in shown if part != "''")


def later(text: str) -> str:
    """With what dbt knows in the place of placeholders."""
    cut = open_topic_store("postgres", Tables(OUTBOX, SCHEMA)).tables.part("")[:-1]
    for placeholder, name in (
        (f'"{SCHEMA}".', "at.prefix"),
        (SCHEMA, "at.namespace"),
        (cut, "at.base"),
        (OUTBOX, "at.name"),
        (INBOX, "at.name"),
        (literal(INTERVAL), "topic.interval"),
        (str(SHARDS - 1), "topic.shards - 1"),
        (str(SHARDS), "topic.shards"),
        (str(TOPIC_ID), "topic_id"),
        (str(GROUP_ID), "group_id"),
        (str(TICK), "tick"),
        (str(NEWEST), "newest"),
    ):
        text = re.sub(rf"(?<!\d){re.escape(placeholder)}(?!\d)", f"{{{{ {name} }}}}", text)
    assert "zz_" not in text, text
    return text.replace(AT.isoformat(), NOW)


def macro(name: str, about: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"\n{{# {about} #}}\n{{% macro {name} %}}\n{body}\n{{% endmacro %}}\n"


def recorded(op: Op[Any], script: Script) -> list[str]:
    run(op, script)
    return script.lines


def make_topic(store: TopicStore) -> str:
    """Nothing more is done where it is there already."""
    topic = Topic.pub_sub("-")
    asked = Script({}, {}, {"name": Late("relaybox.literal(topic)")})
    params = next(store.configure(topic, None)).params  # type: ignore[union-attr]
    columns = [value for name, value in params.items() if name not in ("options", "now")]
    row = (TOPIC_ID, 1, 0, 0, [], None, AT, AT, *columns, params["options"])
    asked.answers = {"topic.catalog.add": [(TOPIC_ID,)], "topic.catalog.find": [row]}
    asked.known = {"topic.catalog.add": "topic_id", "topic.log.taken": "taken"}
    first, taken, *rest = recorded(store.configure(topic, None), asked)
    refused = "'topic ' ~ topic ~ ' needs the table name ' ~ taken ~ ', which something else bears; rename that table'"
    lines = [
        first,
        "{% if topic_id is not none %}",
        f"  {taken}",
        "  {% if taken is not none %}",
        f"    {{% do relaybox.refuse({refused}) %}}",
        "  {% endif %}",
        *(f"  {line}" for line in rest),
        "{% endif %}",
        "{{ return(topic_id is not none) }}",
    ]
    return macro("new_topic(at, topic)", "Makes a pub/sub topic. True: it was not there.", lines)


def make_group(store: TopicStore, start: Start) -> str:
    topic = Topic.pub_sub("-", shards=SHARDS, heartbeat_interval=INTERVAL, heartbeat_timeout="1d")
    row = TopicRow(TOPIC_ID, 1, topic, 0, 0, (), None, AT, AT)
    context: Any = SimpleNamespace(settings=Settings())
    options = Joining(topic="-", group="-", clock=SYSTEM_CLOCK).options(context, row, None, push=False)
    asked = Script(
        {"topic.group.insert": [(GROUP_ID,)], "topic.tick.make": [(TICK,)]},
        {"topic.group.insert": "group_id", "topic.tick.make": "tick"},
        {"name": Late("relaybox.literal(group)"), "ordered": Late("ordered")},
    )
    with suppress(NotFound):  # it is read once more at the end
        run(store.subscribe(row, "-", start, options, None), asked)
    about = f"Makes a group that begins with the {start.kind}; `topic`: its id, shards and interval."
    lines = ["{% set topic_id = topic.id %}", *asked.lines]
    return macro(f"new_group_{start.kind}(at, topic, group, ordered)", about, lines)


def make_order(store: InboxStore) -> str:
    """For an inbox that is new: whatever its processes do has an order from the beginning."""
    applied = [(one.version, one.name, one.checksum, AT) for one in store.migrations()]
    answers: dict[str, Sequence[Sequence[Any]]] = {"schema.exists": [(True,)], "schema.applied": applied}
    answers["inbox.events.newest"] = [(NEWEST, AT)]

    class Facts(Script):
        def execute(self, statement: Statement | Copy) -> Result:
            assert isinstance(statement, Statement)
            order = "value" in statement.params and statement.params["name"] == "order"
            self.late = {"value": Late("relaybox.literal(order)")} if order else {}
            return super().execute(statement)

    lines = recorded(store.configure({"order": Order()}, None), Facts(answers, {"inbox.events.newest": "newest"}))
    return macro("new_order(at, order)", "Gives a new inbox an order; `order`: as it is kept.", lines)


def write_audit(store: Schema) -> str:
    script = Script({}, {}, {name: Late(f"relaybox.literal({name})") for name in ("actor", "verb", "what", "reason")})
    values = {"actor": "", "verb": "", "what": "", "changed": None, "reason": "", "now": None}
    text = script.written(store.sql["audit.write"].bind(**values))
    return macro("audit_line(at, actor, verb, what, reason)", "The line of the audit.", [f"{{{{ return({text}) }}}}"])


def feed_options() -> str:
    """Those of a feed that a model names as Python does, and that go to the database as they are."""
    own = {"name", "query", "key", "sources", "scope", "mode", "table", "topic"}
    names = [option.name for option in fields(Feed) if option.name not in own]
    return macro("feed_options()", "What else may be said of a feed.", [f"{{{{ return({names}) }}}}"])


def main() -> str:
    tables = Tables(OUTBOX, SCHEMA)
    topics = open_topic_store("postgres", tables)
    inbox = open_inbox_store("postgres", InboxTables(INBOX, SCHEMA))
    rehearsal = Rehearsal(None)
    run(inbox.migrate_unseen(), rehearsal)
    assert not any(_JINJA.search(text) for text in rehearsal.texts)
    parts = [HEAD, feed_options(), make_topic(topics)]
    parts += [make_group(topics, start.start) for start in (StartFrom.earliest(), StartFrom.latest())]
    steps = [f"{{% do run_query({_quoted(text)}) %}}" for text in rehearsal.texts]
    parts.append(write_audit(open_store("postgres", tables)))
    parts.append(macro("new_inbox(at)", "Makes or upgrades the tables of an inbox.", steps))
    count = len(inbox.migrations())
    parts.append(macro("inbox_migrations()", "How many the tables of an inbox have.", [f"{{{{ return({count}) }}}}"]))
    parts.append(make_order(inbox))
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check("integrations/dbt/macros/made.sql", main()))

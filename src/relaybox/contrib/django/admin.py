"""The admin: what is kept, and replay, discard and release under permissions.

Lists are pages of what the outbox, an inbox or a group answers, with a limit on its time; nothing is counted. An action
has a reason, and the user stands in the audit log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode

from ...errors import ConfigError, RelayboxError, Undecodable
from ...inbox.inbox import Inbox as InboxBox
from ...outbox import Outbox
from ...settings import Settings
from ...values import DeadLetter as Letter
from ...values import StoredEvent, Where
from .config import configured
from .models import BlockedKey, DeadLetter, Event, Group, Inbox

PAGE = 50
PATIENCE = "1s"  # for a statement; a search may take a few of it
FILTERS = ("type", "key", "tenant", "sender", "error")
_Row = tuple[str, Sequence[object], str]  # what an action is told, the cells, where the first leads


def _options() -> dict[str, Any]:
    settings = Settings.load().replaced({"delivery.database_timeout": PATIENCE})
    return {"schema": configured().schema, "settings": settings}


@cache
def _outbox(alias: str) -> Outbox:
    config = configured()
    return Outbox(config.url(alias), table=config.table or "outbox_event", **_options())


@cache
def _inbox(alias: str, name: str) -> InboxBox:
    return InboxBox(configured().url(alias), name, **_options())


def kept_by(of: str) -> Any:
    """`default:outbox`, `default:inbox/payments` or `default:group/orders/mail`."""
    alias, _, what = of.partition(":")
    match what.split("/"):
        case ["outbox"]:
            return _outbox(alias)
        case ["inbox", name]:
            return _inbox(alias, name)
        case ["group", *topic, group] if topic:
            return _outbox(alias).topics.group("/".join(topic), group)
    raise ConfigError(f"expected DATABASE:outbox, DATABASE:inbox/NAME or DATABASE:group/TOPIC/GROUP, got {of!r}")


def places() -> Iterator[str]:
    config = configured()
    for alias in config.databases:
        if config.table is not None:
            yield f"{alias}:outbox"
        yield from (f"{alias}:inbox/{name}" for name in config.inboxes)


class _List(admin.ModelAdmin):
    """A list that is no query of the ORM."""

    columns: ClassVar[Sequence[str]]
    filters: ClassVar[Sequence[str]] = ()
    states: ClassVar[Sequence[str]] = ()
    verbs: ClassVar[Sequence[str]] = ()

    def rows(self, of: str, asked: QueryDict) -> tuple[list[_Row], int | None]:
        """And where the next page begins, if there may be one."""
        raise NotImplementedError

    def act(self, verb: str, of: str, chosen: Any, **audit: str) -> int:
        raise NotImplementedError

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def may(self, request: HttpRequest, verb: str) -> bool:
        return bool(request.user.has_perm(f"{self.opts.app_label}.{verb}_{self.opts.model_name}"))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        of = request.GET.get("of") or next(places(), "")
        if request.method == "POST":
            return self._acted(request, of)
        found: list[_Row] = []
        following = None
        try:
            found, following = self.rows(of, request.GET)
        except RelayboxError as error:
            messages.error(request, str(error))
        more = request.GET.copy()
        more["after"] = following or 0
        context = {
            **self.admin_site.each_context(request),
            "title": str(self.opts.verbose_name_plural).capitalize(),
            "opts": self.opts,
            "columns": self.columns,
            "rows": found,
            "next": following and more.urlencode(),
            "of": of,
            "places": list(dict.fromkeys([*places(), of])),
            "state": request.GET.get("state", next(iter(self.states), "")),
            "states": self.states,
            "filters": [(name, request.GET.get(name, "")) for name in self.filters],
            "verbs": [verb for verb in self.verbs if self.may(request, verb)],
        }
        return TemplateResponse(request, "admin/relaybox/list.html", context)

    def _acted(self, request: HttpRequest, of: str) -> HttpResponse:
        verb, reason = request.POST.get("verb", ""), request.POST.get("reason", "").strip()
        if verb not in self.verbs or not self.may(request, verb):
            raise PermissionDenied
        chosen = request.POST.getlist("chosen")
        if not chosen or not reason:
            messages.warning(request, "Nothing was changed: choose some, and give a reason.")
        else:
            try:
                count = self.act(verb, of, chosen, reason=reason, actor=request.user.get_username())
                past = f"{verb}d" if verb.endswith("e") else f"{verb}ed"
                messages.success(request, f"{count} {past}.")
            except RelayboxError as error:
                messages.error(request, str(error))
        return redirect(request.get_full_path())


class _Events(_List):
    columns = ("id", "type", "key", "tenant", "attempts", "state", "since", "error")
    filters = ("id", *FILTERS)
    states: ClassVar[Sequence[str]] = ("open", "dead", "done")
    verbs = ("replay", "discard")
    noun = "events"

    def rows(self, of: str, asked: QueryDict) -> tuple[list[_Row], int | None]:
        given: dict[str, Any] = {name: asked[name] for name in FILTERS if asked.get(name)}
        where = Where(ids=[asked["id"]] if asked.get("id") else None, **given)
        after = int(asked["after"]) if asked.get("after", "").isdigit() else 0
        state = {"state": asked.get("state", self.states[0])} if self.states else {}
        found = getattr(kept_by(of), self.noun).list(where, after=after, limit=PAGE, **state)
        following = found[-1].event.seq if len(found) == PAGE else None
        return [self._row(each, of) for each in found], following

    def _row(self, one: Letter | StoredEvent, of: str) -> _Row:
        event, state = one.event, getattr(one, "state", "dead")
        error = (one.error or "").partition("\n")[0][:120]
        since = one.dead_at if isinstance(one, Letter) else one.ended_at or one.due or event.created_at
        place = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[event.id])
        cells = (event.id, event.type, event.key, event.tenant, one.attempts, state, since, error)
        return event.id, cells, f"{place}?{urlencode({'of': of})}"

    def act(self, verb: str, of: str, chosen: Any, **audit: str) -> int:
        changed: int = getattr(getattr(kept_by(of), self.noun), verb)(chosen, **audit)
        return changed

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        of, one = request.GET.get("of", ""), None
        try:
            one = getattr(kept_by(of), self.noun).get(unquote(object_id))
        except RelayboxError as error:
            messages.error(request, str(error))
        if one is None:
            raise Http404(f"there is no {self.opts.verbose_name} {unquote(object_id)}")
        event, own = one.event, [field.name for field in fields(one) if field.name != "event"]
        shown = ("id", "type", "aggregate_type", "key", "tenant", "sender", "content_type", "occurred_at", "created_at")
        context = {
            **self.admin_site.each_context(request),
            "title": event.id,
            "opts": self.opts,
            "of": of,
            "fields": [(name, getattr(event, name)) for name in shown] + [(name, getattr(one, name)) for name in own],
            "content": content(event) if request.user.has_perm(f"{self.opts.app_label}.view_payload") else None,
        }
        return TemplateResponse(request, "admin/relaybox/event.html", context)


def content(event: Any) -> list[tuple[str, str]]:
    """As well as it can be read: why an event died may be that it cannot."""
    if event.unreadable is not None:
        return [("unreadable", event.unreadable)]
    try:
        headers = str(dict(event.headers))
    except Undecodable:
        headers = str(event.headers_text)
    return [("headers", headers), ("payload", event.body.decode(errors="backslashreplace"))]


class _DeadLetters(_Events):
    states = ()
    noun = "dead"


class _BlockedKeys(_List):
    columns = ("key", "cause", "waits for", "since", "attempts", "error")
    verbs = ("release",)

    def rows(self, of: str, asked: QueryDict) -> tuple[list[_Row], int | None]:
        return [
            (each.key, (each.key, each.cause, each.event_id, each.since, each.attempts, each.error), "")
            for each in kept_by(of).keys.list(PAGE)
            if each.key is not None
        ], None

    def act(self, verb: str, of: str, chosen: Any, **audit: str) -> int:
        return sum(kept_by(of).keys.release(key, **audit) for key in chosen)


class _Groups(_List):
    columns = ("group", "state", "reason", "pending", "in flight", "parked", "oldest", "dead", "silent for")

    def rows(self, of: str, asked: QueryDict) -> tuple[list[_Row], int | None]:
        alias = of.partition(":")[0]
        box = _outbox(alias)
        if box.topic_store is None:
            return [], None
        found: list[_Row] = []
        for one in box.topics.groups():
            name = f"{one.topic}/{one.group}"
            counts = (one.pending, one.in_flight, one.parked, one.oldest, one.dead, one.silent)
            found.append((name, (name, one.state, one.reason, *counts), _dead_letters(f"{alias}:group/{name}")))
        return found, None


class _Inboxes(_List):
    columns = ("inbox", "schema", "pending", "dead", "processors")

    def rows(self, of: str, asked: QueryDict) -> tuple[list[_Row], int | None]:
        alias, names = of.partition(":")[0], configured().inboxes
        return [
            (
                each.name,
                (each.name, each.schema, each.pending, each.dead, each.processors),
                _dead_letters(f"{alias}:inbox/{each.name}") if each.name in names else "",
            )
            for each in InboxBox.list(configured().url(alias))
        ], None


def _dead_letters(of: str) -> str:
    return f"{reverse('admin:relaybox_deadletter_changelist')}?{urlencode({'of': of})}"


for model, page in (
    (Event, _Events),
    (DeadLetter, _DeadLetters),
    (BlockedKey, _BlockedKeys),
    (Group, _Groups),
    (Inbox, _Inboxes),
):
    admin.site.register(model, page)

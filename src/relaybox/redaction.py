"""URLs for people: the one place that decides what of them may be shown.

What is not known to be harmless is hidden, and what cannot be told apart is taken for a secret: a URL that somebody
mistyped shows less, never more.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

HIDDEN = "***"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_NAME = re.compile(r"[\w.%+-]+")
_PORT = re.compile(r"[^:]*(:[0-9]*)?|\[[0-9a-fA-F:.%]*\](:[0-9]*)?")
_PASSWORD = re.compile(r"[?&][^=&]*(pass|pwd|secret|token)[^=&]*=[^&]", re.IGNORECASE)
# Of the options of databases and brokers those whose values are shown.
_HARMLESS = re.compile(
    r"((ca|cert|key|credentials)_file|tls|insecure_no_tls|ssl(_ca|_cert|_key|cert|key|mode|rootcert|negotiation)?"
    r"|host(addr)?|port|user(name)?|dbname|service|unix_socket|application_name|target_session_attrs|mode"
    r"|(connect_|tcp_user_)?timeout|keepalives(_\w+)?|account|auth|sasl|client_id|cluster|connections|consumer|domain"
    r"|exchange|group|inbox|profile|queue|region|schema|sender|start|stream|subject|subscription|topic)",
    re.IGNORECASE,
)


def masked(url: str) -> str:
    """The URL without its passwords, for messages. Text that is no URL is not shown at all: it may be a password."""
    found = _SCHEME.match(url)
    if found is None:
        return HIDDEN
    scheme, rest = found[0], url[found.end() :]
    account, at, rest = rest.rpartition("@") if not scheme.startswith("sqlite") else ("", "", rest)
    if set(account) & set("/?#"):  # a password with such a sign, or an option with an @: nobody can tell
        return f"{scheme}{HIDDEN}"
    rest, hash_sign, _ = rest.partition("#")
    place, question, query = rest.partition("?")
    if not at and not scheme.startswith("sqlite"):
        host, slash, path = place.partition("/")
        if not all(_PORT.fullmatch(each) for each in host.split(",")):
            place = host.partition(":")[0] + f":{HIDDEN}" + slash + path
    place = _place(scheme, place)
    options = "&".join(map(_option, query.split("&")))
    end = f"#{HIDDEN}" if hash_sign else ""
    return f"{scheme}{_account(scheme, account) if at else ''}{place}{question}{options}{end}"


def _place(scheme: str, place: str) -> str:
    """Where a sign of a URL is mistyped, options or a password can be the name of a host or a database."""
    host, slash, path = place.partition("/")
    if scheme.startswith("sqlite"):
        return place
    return (HIDDEN if "=" in host else host) + slash + (HIDDEN if set(path) & set("=:") else path)


def _account(scheme: str, account: str) -> str:
    """A name without a password is a token to NATS."""
    user, colon, _ = account.partition(":")
    if not _NAME.fullmatch(user) or (not colon and scheme in ("nats://", "tls://")):
        user = HIDDEN if user or not colon else ""
    return f"{user}:{HIDDEN}@" if colon else f"{user}@"


def _option(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not pair or (equals and _HARMLESS.fullmatch(name) and "=" not in value):  # else an ampersand is missing
        return pair
    return f"{name}={HIDDEN}" if equals and _NAME.fullmatch(name) else HIDDEN


def holds_password(url: str) -> bool:
    """Whether this URL is enough to log in."""
    found = _SCHEME.match(url)
    if found is None or url.startswith("sqlite"):
        return False
    return _PASSWORD.search(url) is not None or url[found.end() :].rpartition("@")[0].partition(":")[2] != ""


def scrub(text: str, url: str | None) -> str:
    """Text of others, without the secrets of this URL, which they may have put there."""
    for secret in sorted(_secrets(url or ""), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets(url: str) -> set[str]:
    found = _SCHEME.match(url)
    if found is None:
        return {url} - {""}
    scheme, rest = found[0], url[found.end() :]
    if scheme.startswith("sqlite"):
        return set()
    account, _, behind = rest.rpartition("@")
    user, colon, password = account.partition(":")
    secrets = {password if colon else "", user if not colon and scheme in ("nats://", "tls://") else ""}
    for reading in {behind, rest}:  # the @ may be one of an option
        place, _, fragment = reading.partition("#")
        place, _, query = place.partition("?")
        path = place.partition("/")[2]
        secrets |= {fragment, path if set(path) & set("=:") else ""}
        for pair in query.split("&"):
            name, _, value = pair.partition("=")
            if not _HARMLESS.fullmatch(name) or "=" in value:
                secrets.add(value)
    return {form for secret in secrets for form in (secret, unquote(secret), unquote_plus(secret))} - {""}

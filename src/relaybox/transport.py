"""How far the network between us and a database or a broker is trusted: one vocabulary for all of them.

    tls=verify            encrypted, and the server proves its name with a certificate
    tls=require           encrypted; any server is believed
    tls=off               not encrypted
    ca_file               who signed the server's certificate, if the system does not know them
    cert_file, key_file   our own certificate, if the server wants one
    insecure_no_tls       a password may go over the network in clear text

What is not encrypted to a remote host, or not verified, is a warning in the log, once per host.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit, urlunsplit

from .errors import ConfigError

log = logging.getLogger("relaybox")
TlsMode: TypeAlias = Literal["verify", "require", "off"]

OPTIONS = ("tls", "ca_file", "cert_file", "key_file", "insecure_no_tls")
_WORDS = {"true": True, "1": True, "false": False, "0": False}
_said: set[tuple[str, str, str]] = set()


@dataclass(frozen=True, kw_only=True)
class Tls:
    """What somebody said about TLS. `mode` None: nothing."""

    mode: TlsMode | None = None
    ca_file: Path | str | None = None
    cert_file: Path | str | None = None
    key_file: Path | str | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in get_args(TlsMode):
            raise ConfigError(f"expected tls to be verify, require or off, got {self.mode!r}")
        given = [name for name in ("ca_file", "cert_file", "key_file") if getattr(self, name) is not None]
        if self.mode == "off" and given:
            raise ConfigError(f"{given[0]} makes no sense with tls=off; expected tls=verify")
        if self.mode == "require" and self.ca_file is not None:
            raise ConfigError("ca_file makes no sense with tls=require, which verifies nobody; expected tls=verify")
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("key_file needs cert_file beside it")

    def context(self) -> ssl.SSLContext:
        """Certificate and host name are verified, unless with `tls=require`; without `ca_file` the system's authorities
        are trusted. ConfigError says what is wrong with the files."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.mode == "require":
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.cert_file is not None:
                # An encrypted key must not make OpenSSL ask the terminal of a daemon.
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(file) for file in (self.ca_file, self.cert_file, self.key_file) if file is not None)
            raise ConfigError(f"cannot use the TLS files {files}: {error.strerror or error}") from None
        return context


def split_url(url: str, other_words: Mapping[str, str]) -> tuple[str, dict[str, str], dict[str, str]]:
    """The URL without our options, those, and the others. `other_words`: for our options, by those who have their own;
    `ssl` is true or false."""
    parts = urlsplit(url)
    found: dict[str, str] = {}
    rest: dict[str, str] = {}
    left = []  # as it was written: client libraries differ in what a plus sign is
    for pair in parts.query.split("&"):
        name, value = (unquote(part) for part in pair.partition("=")[::2])
        option = other_words.get(name, name)
        if option not in OPTIONS:
            rest[name] = value
            left.append(pair)
        elif option in found:
            raise ConfigError(f"expected {option} once in the URL")
        else:
            found[option] = ("off", "verify")[_boolean(name, value)] if name == "ssl" else value
    return urlunsplit(parts._replace(query="&".join(left))) if found else url, found, rest


def tls_of(options: Mapping[str, str]) -> Tls:
    """Who says whom to trust wants to verify."""
    mode: Any = options.get("tls")
    files = {name: options[name] for name in ("ca_file", "cert_file", "key_file") if name in options}
    return Tls(mode=mode or ("verify" if files else None), **files)


def insecure(options: Mapping[str, str]) -> bool:
    return _boolean("insecure_no_tls", options.get("insecure_no_tls", "false"))


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in _WORDS:
        hint = "; tls=verify, require or off says more" if name == "ssl" else ""
        raise ConfigError(f"expected {name} in the URL to be true or false{hint}")
    return _WORDS[value.lower()]


def is_remote(host: str) -> bool:
    """Whether what is said to this host leaves the machine. A Unix socket does not, and no host means one."""
    host = host.rstrip(".").lower()
    if not host or host.startswith(("/", "@")) or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return True


def warn_clear(what: str, host: str, remedy: str) -> None:
    """Once per host."""
    _once(what, host, f"the connection to {what} at {host} is not encrypted: {remedy}, or keep to a network you trust")


def warn_unverified(what: str, host: str, remedy: str) -> None:
    """Once per host."""
    _once(
        what, host, f"the connection to {what} at {host} is encrypted, but anybody could pose as the server: {remedy}"
    )


def _once(what: str, host: str, text: str) -> None:
    if (what, host, text) not in _said:
        _said.add((what, host, text))
        log.warning("%s", text)

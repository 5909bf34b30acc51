"""TLS to databases, alike in every client library: a server that cannot prove its name gets nothing, least of all the
password; and without TLS no password goes out in clear text to a remote host."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.certificates import Authority, Pair
from kit.conditions import wait_until
from relaybox.drivers import asyncmy, asyncpg, parse, psycopg, pymysql
from relaybox.drivers.tls import libpq, of_mysql, of_postgres
from relaybox.errors import ConfigError, ConnectionLost, StoreError
from relaybox.testing.servers import MariaDBServer, PostgresServer, require
from relaybox.testing.servers.postgres import connect as as_admin

SECRET = "s3cret-of-the-database"
REMOTE = "0.0.0.0"
Dial = Callable[[str], Any]


def dialled(library: Any) -> Dial:
    """Connects as our pools do; returns the connection closed."""

    async def asynchronous(url: str) -> None:
        connection = await library.aconnect(url)
        await connection.close()

    def synchronous(url: str) -> None:
        library.connect(url).close()

    return synchronous if library is pymysql else lambda url: asyncio.run(asynchronous(url))


POSTGRES: dict[str, Dial] = {
    "psycopg": lambda url: psycopg.connect(url).close(),
    "psycopg async": dialled(psycopg),
    "asyncpg": dialled(asyncpg),
}
MYSQL: dict[str, Dial] = {"pymysql": dialled(pymysql), "asyncmy": dialled(asyncmy)}
postgres_clients = pytest.mark.parametrize("dial", POSTGRES.values(), ids=POSTGRES.keys())
mysql_clients = pytest.mark.parametrize("dial", MYSQL.values(), ids=MYSQL.keys())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def good(authority: Authority) -> Pair:
    return authority.issue("good", "localhost")


@pytest.fixture(scope="module")
def expired(authority: Authority) -> Pair:
    return authority.issue("expired", "localhost", days=-1)


def of(server: Any, authority: Authority | None, host: str = "localhost", more: str = "") -> str:
    query = f"tls=verify&ca_file={authority.ca_file}" if authority else "tls=verify"
    return f"{server.url().replace('127.0.0.1', host)}?{query}{more}"


@dataclass
class Impostors:
    """Servers that cannot prove their name: another's certificate, one for another name, one that is too old."""

    authority: Authority
    another: Authority
    good: Pair
    expired: Pair

    def refused(self, dial: Dial, server: Any, *more: str, names: str, age: str) -> None:
        for url in (of(server, self.another), of(server, None), *more):
            with pytest.raises(ConnectionLost, match="certificate verify failed"):
                dial(url)
        with pytest.raises(ConnectionLost, match=names):
            dial(of(server, self.authority, "127.0.0.1"))
        server.use(self.expired)
        try:
            with pytest.raises(ConnectionLost, match=age):
                dial(of(server, self.authority))
        finally:
            server.use(self.good)


@pytest.fixture(scope="module")
def impostors(authority: Authority, good: Pair, expired: Pair, tmp_path_factory: pytest.TempPathFactory) -> Impostors:
    return Impostors(authority, Authority(tmp_path_factory.mktemp("another"), "another"), good, expired)


# -- PostgreSQL -----------------------------------------------------------------------------------


class TlsPostgres(PostgresServer):
    pair: Pair

    def use(self, pair: Pair) -> None:
        self.pair = pair
        self._write("cert.pem", pair.cert_file.read_text())
        self._write("key.pem", pair.key_file.read_text()).chmod(0o600)
        if self.running:
            self.reload()

    def reload(self) -> None:
        """Returns when new connections find what was written."""

        def loaded() -> Any:
            with as_admin(self.url()) as admin:
                return admin.execute("SELECT pg_conf_load_time()").fetchone()[0]

        before = loaded()
        with as_admin(self.url()) as admin:
            admin.execute("SELECT pg_reload_conf()")
        wait_until(lambda: loaded() > before, "new configuration")

    def _prepare(self) -> None:
        files = {"ssl_cert_file": str(self.folder / "cert.pem"), "ssl_key_file": str(self.folder / "key.pem")}
        self._settings = {**self._settings, "ssl": "on", **files}
        super()._prepare()
        self.use(self.pair)


@pytest.fixture(scope="module")
def postgres(good: Pair) -> Iterator[TlsPostgres]:
    require("postgres-system")
    server = TlsPostgres.from_system(durable=False)
    server.pair = good
    with server:
        yield server


@postgres_clients
def test_postgres_over_tls(dial: Dial, postgres: TlsPostgres, authority: Authority) -> None:
    dial(of(postgres, authority))
    ours = authority.issue("client")
    ours.key_file.chmod(0o600)
    dial(of(postgres, authority, more=f"&cert_file={ours.cert_file}&key_file={ours.key_file}"))
    dial(postgres.url() + "?tls=require")
    dial(postgres.url() + "?tls=off")
    dial(postgres.url() + "?sslmode=require")
    dial(f"{postgres.url().replace('127.0.0.1', 'localhost')}?sslmode=verify-full&sslrootcert={authority.ca_file}")


@postgres_clients
def test_a_postgres_that_cannot_prove_its_name(dial: Dial, postgres: TlsPostgres, impostors: Impostors) -> None:
    names, age = r"IP address mismatch|does not match host name", r"certificate has expired|certificate verify failed"
    impostors.refused(dial, postgres, names=names, age=age)


@postgres_clients
@pytest.mark.parametrize("method", ["scram-sha-256", "md5", "password", "trust"])
def test_how_postgres_lets_in_where_tls_is_not_certain(dial: Dial, postgres: TlsPostgres, method: str) -> None:
    """A challenge is answered; the password as it is, only over TLS that was asked for."""
    role = f"by_{method.replace('-', '_')}"
    with as_admin(postgres.url()) as admin:
        admin.execute(f"SET password_encryption = '{'md5' if method == 'md5' else 'scram-sha-256'}'")
        admin.execute(f"DROP ROLE IF EXISTS {role}")
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
        [folder] = admin.execute("SHOW data_directory").fetchone()
        rules = Path(folder) / "pg_hba.conf"
        before = rules.read_text()
        rules.write_text(f"host all {role} 127.0.0.1/32 {method}\n{before}")
    postgres.reload()
    account = postgres.url().replace("relaybox@127.0.0.1", f"{role}:{SECRET}@{{}}")
    try:
        for query in ("", "?sslmode=prefer", "?tls=off", "?tls=require"):
            if method == "password" and query == "?tls=off":
                with pytest.raises(StoreError, match="in clear text"):
                    dial(account.format(REMOTE) + query)
            elif not (method == "password" and query != "?tls=require"):
                dial(account.format(REMOTE) + query)
        dial(account.format("127.0.0.1"))
        dial(account.format(REMOTE) + "?insecure_no_tls=true")
    finally:
        rules.write_text(before)
        postgres.reload()


def test_tls_is_had_where_it_is_asked_for(postgres: TlsPostgres, authority: Authority) -> None:
    with closing(psycopg.connect(of(postgres, authority))) as connection:
        assert connection.raw.pgconn.ssl_in_use
    with closing(psycopg.connect(postgres.url() + "?tls=off")) as connection:
        assert not connection.raw.pgconn.ssl_in_use


# -- MariaDB --------------------------------------------------------------------------------------


class TlsMariaDB(MariaDBServer):
    pair: Pair
    trusted: Path

    def use(self, pair: Pair) -> None:
        self.pair = pair
        self._write("cert.pem", pair.cert_file.read_text())
        self._write("key.pem", pair.key_file.read_text())
        if self.running:
            self._execute("FLUSH SSL")

    def _prepare(self) -> None:
        super()._prepare()
        self.use(self.pair)

    def _command(self) -> Sequence[str | Path]:
        files = [f"--ssl-cert={self.folder / 'cert.pem'}", f"--ssl-key={self.folder / 'key.pem'}"]
        files.append(f"--ssl-ca={self._write('ca.pem', self.trusted.read_text())}")
        return [*super()._command(), *files]


@pytest.fixture(scope="module")
def mariadb(authority: Authority, good: Pair) -> Iterator[TlsMariaDB]:
    require("mariadb")
    server = TlsMariaDB.from_system(durable=False)
    if not server.is_mariadb:
        pytest.skip("FLUSH SSL is MariaDB's")
    server.pair, server.trusted = good, authority.ca_file
    with server:
        yield server


@mysql_clients
def test_mariadb_over_tls(dial: Dial, mariadb: TlsMariaDB, authority: Authority) -> None:
    dial(of(mariadb, authority))
    ours = authority.issue("mysql-client")
    dial(of(mariadb, authority, more=f"&cert_file={ours.cert_file}&key_file={ours.key_file}"))
    dial(f"{mariadb.url().replace('127.0.0.1', 'localhost')}?ssl=true&ssl_ca={authority.ca_file}")
    dial(mariadb.url() + "?tls=require")
    dial(mariadb.url() + "?tls=off")


@mysql_clients
def test_a_mariadb_that_cannot_prove_its_name(dial: Dial, mariadb: TlsMariaDB, impostors: Impostors) -> None:
    plain = mariadb.url().replace("127.0.0.1", "localhost")
    more = (f"{plain}?ssl=true", f"{plain}?ssl_ca={impostors.another.ca_file}")
    impostors.refused(dial, mariadb, *more, names="IP address mismatch", age="certificate has expired")


def test_mariadb_knows_that_it_is_encrypted(mariadb: TlsMariaDB, authority: Authority) -> None:
    def cipher(url: str) -> str:
        with closing(pymysql.connect(url)) as connection, connection.raw.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            return str(cursor.fetchone()[1])

    assert cipher(of(mariadb, authority))
    assert not cipher(mariadb.url())


# -- a server that wants the password -------------------------------------------------------------


class Impostor:
    """Says what it was told to say, a line for each thing that it hears, and keeps what it hears."""

    def __init__(self, greeting: bytes, answer: Callable[[bytes, int], bytes | None]) -> None:
        self.heard = bytearray()
        self._greeting, self._answer = greeting, answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            connection.sendall(self._greeting)
            turn = 0
            try:
                while data := connection.recv(65536):
                    self.heard += data
                    reply = self._answer(data, turn)
                    turn += 1
                    if reply is None:
                        return
                    for n in range(len(reply)):  # in the smallest pieces
                        connection.sendall(reply[n : n + 1])
            except OSError:
                return

    def __enter__(self) -> Impostor:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def postgres_impostor() -> Impostor:
    def answer(data: bytes, turn: int) -> bytes | None:
        if data[4:8] == struct.pack("!i", 80877103):
            return b"N"  # no TLS here
        return None if data[:1] == b"p" else b"R" + struct.pack("!ii", 8, 3)

    return Impostor(b"", answer)


@postgres_clients
@pytest.mark.parametrize("query", ["", "?sslmode=prefer", "?sslmode=disable", "?tls=off"])
def test_postgres_is_not_told_the_password_in_clear_text(dial: Dial, query: str) -> None:
    with postgres_impostor() as impostor:
        with pytest.raises(StoreError, match=r"PostgreSQL asks for the password in clear text.*tls=verify") as caught:
            dial(f"postgresql://relay:{SECRET}@{REMOTE}:{impostor.port}/shop{query}")
    assert SECRET.encode() not in impostor.heard
    assert SECRET not in str(caught.value)


@postgres_clients
def test_postgres_is_told_the_password_where_somebody_says_so(dial: Dial) -> None:
    for url in (f"relay:{SECRET}@{REMOTE}:{{}}/shop?insecure_no_tls=true", f"relay:{SECRET}@127.0.0.1:{{}}/shop"):
        with postgres_impostor() as impostor:
            with pytest.raises(StoreError):
                dial("postgresql://" + url.format(impostor.port))
        assert SECRET.encode() in impostor.heard


@postgres_clients
@pytest.mark.parametrize("query", ["tls=verify", "tls=require", "sslmode=require"])
def test_postgres_without_tls_is_told_nothing_where_tls_is_asked_for(dial: Dial, query: str) -> None:
    with postgres_impostor() as impostor:
        with pytest.raises(ConnectionLost, match="SSL"):
            dial(f"postgresql://relay:{SECRET}@{REMOTE}:{impostor.port}/shop?{query}")
    assert len(impostor.heard) <= 8


SSL, PLUGIN_AUTH = 0x800, 0x80000
CAPABILITIES = 0x00208208 | PLUGIN_AUTH  # 4.1, secure, a database, long answers


def packet(payload: bytes, number: int) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def mysql_impostor(*replies: bytes, plugin: bytes = b"mysql_native_password", without: int = SSL) -> Impostor:
    able = struct.pack("<I", (CAPABILITIES | SSL) & ~without)
    hello = b"\x0a8.0.36\0" + b"\1\0\0\0" + b"12345678\0" + able[:2] + b"\x2d\2\0" + able[2:] + b"\x15" + bytes(10)
    hello += b"123456789012\0" + plugin + b"\0"

    def answer(data: bytes, turn: int) -> bytes | None:
        return packet(replies[turn], data[3] + 1) if turn < len(replies) else None

    return Impostor(packet(hello, 0), answer)


FULL = b"\x01\x04"  # of caching_sha2_password: the whole password, please
KEY = b"\x01-----BEGIN PUBLIC KEY-----"
WANTS: dict[str, tuple[bytes, tuple[bytes, ...]]] = {
    "clear": (b"mysql_native_password", (b"\xfemysql_clear_password\0",)),
    "dialog": (b"mysql_native_password", (b"\xfedialog\0\x04Password: ",)),
    "caching_sha2": (b"caching_sha2_password", (FULL, KEY)),
    "caching_sha2 later": (b"mysql_native_password", (b"\xfecaching_sha2_password\0" + b"1" * 20 + b"\0", FULL, KEY)),
    "sha256": (b"sha256_password", (KEY,)),
    "sha256 later": (b"mysql_native_password", (b"\xfesha256_password\0" + b"1" * 20 + b"\0", KEY)),
    "before 4.1": (b"mysql_native_password", (b"\xfemysql_old_password\0" + b"1" * 8 + b"\0",)),
}


@mysql_clients
@pytest.mark.parametrize("wants", WANTS)
def test_mysql_is_not_told_the_password_in_clear_text(dial: Dial, wants: str) -> None:
    plugin, replies = WANTS[wants]
    with mysql_impostor(*replies, plugin=plugin) as impostor:
        with pytest.raises(StoreError, match=r"MySQL asks for the password in clear text.*tls=verify") as caught:
            dial(f"mysql://relay:{SECRET}@{REMOTE}:{impostor.port}/shop")
    assert SECRET.encode() not in impostor.heard
    assert SECRET not in str(caught.value)


@mysql_clients
def test_mysql_is_told_the_password_where_somebody_says_so(dial: Dial) -> None:
    for url in (f"relay:{SECRET}@{REMOTE}:{{}}/shop?insecure_no_tls=true", f"relay:{SECRET}@127.0.0.1:{{}}/shop"):
        with mysql_impostor(b"\xfemysql_clear_password\0") as impostor:
            with pytest.raises(StoreError):
                dial("mysql://" + url.format(impostor.port))
        assert SECRET.encode() in impostor.heard


@mysql_clients
@pytest.mark.parametrize("query", ["tls=verify", "tls=require", "ssl=true"])
def test_mysql_without_tls_is_told_nothing_where_tls_is_asked_for(dial: Dial, query: str) -> None:
    with mysql_impostor(b"\xfemysql_clear_password\0") as impostor:
        with pytest.raises(StoreError, match="offers no TLS"):
            dial(f"mysql://relay:{SECRET}@127.0.0.1:{impostor.port}/shop?{query}")
    assert not impostor.heard


@mysql_clients
def test_mysql_of_before_5_5_is_told_nothing(dial: Dial) -> None:
    with mysql_impostor(b"\xfe", without=SSL | PLUGIN_AUTH) as impostor:
        with pytest.raises(StoreError, match="in clear text"):
            dial(f"mysql://relay:{SECRET}@{REMOTE}:{impostor.port}/shop")
    assert not impostor.heard


# -- what is said, and what is understood -----------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://db-1.example/shop", "PostgreSQL at db-1.example is not encrypted: add tls=verify"),
        ("postgresql://db-2.example/shop?sslmode=disable", "PostgreSQL at db-2.example is not encrypted"),
        ("postgresql:///shop?host=db-3.example", "PostgreSQL at db-3.example is not encrypted"),
        ("postgresql://db-4.example/shop?tls=require", "db-4.example is encrypted, but anybody could pose"),
        ("postgresql://db-5.example/shop?sslmode=require", "db-5.example is encrypted, but anybody could pose"),
        ("mysql://db-6.example/shop", "MySQL at db-6.example is not encrypted: add tls=verify"),
        ("mysql://db-7.example/shop?tls=require", "db-7.example is encrypted, but anybody could pose"),
        ("postgresql://10.1.2.3/shop?tls=off", "PostgreSQL at 10.1.2.3 is not encrypted"),
        ("postgresql://db-8.example/shop?tls=verify", None),
        ("postgresql://db-8.example/shop?sslmode=verify-full", None),
        ("postgresql://localhost/shop", None),
        ("postgresql://127.0.0.2/shop", None),
        ("postgresql://[::1]/shop", None),
        ("postgresql:///shop?host=/run/postgresql", None),
        ("postgresql:///shop", None),
        ("mysql://db-8.example/shop?unix_socket=/run/x.sock", None),
        ("mysql://db-8.example/shop?ssl=true", None),
    ],
)
def test_what_is_not_safe_is_said_once(
    url: str, said: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)
    read, name = (of_mysql, "MySQL") if url.startswith("mysql") else (of_postgres, "PostgreSQL")
    read.cache_clear()
    for _ in range(2):
        read(url).warn(name)
    read.cache_clear()
    assert [record.levelname for record in caplog.records] == (["WARNING"] if said else [])
    assert (said or "") in caplog.text


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("tls=maybe", "expected tls to be verify, require or off, got 'maybe'"),
        ("tls=off&ca_file=ca.pem", "ca_file makes no sense with tls=off"),
        ("tls=require&ca_file=ca.pem", "ca_file makes no sense with tls=require"),
        ("tls=verify&key_file=key.pem", "key_file needs cert_file"),
        ("tls=verify&tls=off", "expected tls once"),
        ("insecure_no_tls=maybe", "expected insecure_no_tls in the URL to be true or false"),
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_contradictions_are_told_before_anything_connects(scheme: str, query: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(f"{scheme}://u:{SECRET}@host/db?{query}")


def test_two_vocabularies_at_once() -> None:
    with pytest.raises(ConfigError, match="expected tls or sslmode in the database URL, not both"):
        parse("postgresql://host/db?tls=verify&sslmode=require")
    with pytest.raises(ConfigError, match="expected ca_file once"):
        parse("mysql://host/db?ca_file=a&ssl_ca=b")
    with pytest.raises(ConfigError, match="expected ssl in the URL to be true or false"):
        parse("mysql://host/db?ssl=maybe")


def test_a_missing_file_is_not_a_lost_connection() -> None:
    for dial in POSTGRES.values():
        with pytest.raises(ConfigError, match=r"cannot use the TLS files /no/such/ca.pem: No such file"):
            dial("postgresql://127.0.0.1:1/db?ca_file=/no/such/ca.pem")
    for dial in MYSQL.values():
        with pytest.raises(ConfigError, match=r"cannot use the TLS files /no/such/ca.pem: No such file"):
            dial("mysql://127.0.0.1:1/db?ca_file=/no/such/ca.pem")


def test_the_systems_authorities_are_those_of_python(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
    given = libpq(of_postgres("postgresql://db.example/shop?tls=verify").tls)
    assert given == {"sslmode": "verify-full", "sslrootcert": str(authority.ca_file)}


def test_other_options_stay_as_they_were_written() -> None:
    found = of_postgres("postgresql://h/d?options=-c%20a%3Db+c&tls=verify&application_name=x%20y")
    assert found.url == "postgresql://h/d?options=-c%20a%3Db+c&application_name=x%20y"

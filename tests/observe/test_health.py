"""The health pages under clients that are slow, many, talkative or strangers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from kit import make_postgres
from kit.conditions import wait_until
from relaybox import Inbox, Ingest, Maintainer, Outbox, Relay, Settings, Topic
from relaybox.errors import ConfigError
from relaybox.observe.health import CONNECTIONS, LONGEST, HealthServer
from relaybox.service import Service, serving
from relaybox.settings import ListenSettings, explained
from relaybox.testing.servers.process import free_port
from relaybox.values import Health

TOKEN = "t0ken-of-the-pages"
Serve = Callable[..., HealthServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as open_servers:

        def make(metrics: Any = None, **options: Any) -> HealthServer:
            def health() -> Health:
                return Health("critical", ("the broker is away",))

            return open_servers.enter_context(closing(HealthServer("127.0.0.1:0", health, metrics, **options)))

        yield make


def get(port: int, path: str, **headers: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def dial(server: HealthServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def test_a_probe_is_answered_beside_any_number_of_slow_clients(serve: Serve) -> None:
    server = serve(seconds=3600)  # so that none is cut off for its slowness
    with ExitStack() as clients:
        slow = [clients.enter_context(closing(dial(server))) for _ in range(3 * CONNECTIONS)]
        for client in slow:
            client.sendall(b"GET /live HTTP/1.1\r\nX-Drip: ")
        assert get(server.port, "/live")[0] == 200
        assert get(server.port, "/ready")[0] == 503
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("relaybox-health")]
        assert len(threads) == 1


def test_connections_are_bounded(serve: Serve) -> None:
    server = serve(seconds=3600)
    with ExitStack() as clients:
        slow = [clients.enter_context(closing(dial(server))) for _ in range(CONNECTIONS + 1)]
        assert slow[0].recv(1) == b""  # the oldest had to go
        assert len(server._waiting) <= CONNECTIONS


def test_a_client_that_drips_is_cut_off_in_time(serve: Serve) -> None:
    server = serve(seconds=0.2)
    with closing(dial(server)) as client:
        ended = False
        client.settimeout(0.02)
        for _ in range(1000):  # a byte now and then keeps no deadline away
            try:
                client.sendall(b"G")
                ended = client.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
        assert ended
    assert get(server.port, "/live")[0] == 200


def test_a_client_that_does_not_read_is_cut_off_in_time(serve: Serve) -> None:
    server = serve(lambda: (200, "text/plain", b"x" * 50_000_000), seconds=0.3)
    with closing(dial(server)) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        wait_until(lambda: server._rendering is not None and not server._waiting, "end of the connection")
        received = 0
        with suppress(ConnectionResetError):
            while data := client.recv(1_000_000):
                received += len(data)
        assert received < 50_000_000


def test_a_long_request_is_refused(serve: Serve) -> None:
    server = serve()
    with closing(dial(server)) as client:
        client.sendall(b"GET /live HTTP/1.0\r\nX: " + b"x" * 2 * LONGEST)
        assert client.makefile("rb").readline().startswith(b"HTTP/1.0 431")
    assert get(server.port, "/live")[0] == 200


def test_other_methods_and_pages(serve: Serve) -> None:
    server = serve()
    assert get(server.port, "/metrics") == (404, b"/live /ready /metrics\n")
    with closing(dial(server)) as client:
        client.sendall(b"POST /live HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        assert client.makefile("rb").readline().startswith(b"HTTP/1.0 405")
    with closing(dial(server)) as client:
        client.sendall(b"\x00\xff\r\n\r\n")
        assert client.makefile("rb").readline().startswith(b"HTTP/1.0 405")


def test_slow_metrics_hold_up_no_probe_and_are_rendered_once_for_all_who_wait(serve: Serve) -> None:
    rendering, go, calls = threading.Event(), threading.Event(), []

    def slow() -> tuple[int, str, bytes]:
        calls.append(1)
        rendering.set()
        go.wait(30)
        return 200, "text/plain", b"metrics\n"

    server = serve(slow, seconds=3600)
    answers: list[tuple[int, bytes]] = []
    scrapers = [threading.Thread(target=lambda: answers.append(get(server.port, "/metrics"))) for _ in range(3)]
    for scraper in scrapers:
        scraper.start()
    assert rendering.wait(30)
    wait_until(lambda: len(server._waiting) == 3, "third scraper")
    assert get(server.port, "/live")[0] == 200
    go.set()
    for scraper in scrapers:
        scraper.join(30)
    assert answers == [(200, b"metrics\n")] * 3
    assert len(calls) == 1


def test_a_stranger_without_the_token_learns_up_or_down_and_no_more(serve: Serve) -> None:
    server = serve(lambda: (200, "text/plain", b"metrics\n"), token=TOKEN)
    assert get(server.port, "/live")[0] == 200
    status, body = get(server.port, "/ready")
    assert status == 503
    assert "reasons" not in json.loads(body)
    for wrong in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"):
        assert get(server.port, "/metrics", Authorization=wrong)[0] == 401
    assert get(server.port, "/metrics", Authorization=f"Bearer {TOKEN}") == (200, b"metrics\n")
    assert json.loads(get(server.port, "/ready", authorization=f"bearer {TOKEN}")[1])["reasons"] == [
        "the broker is away"
    ]


@pytest.mark.parametrize("token", ["", "two words", "schön", "line\nbreak"])
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII") as caught:
        HealthServer("127.0.0.1:0", lambda: Health("ok"), token=token)
    assert not token or token not in str(caught.value)


def test_the_environment_gives_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYBOX_LISTEN_TOKEN", TOKEN)
    port = free_port()
    with serving(f"127.0.0.1:{port}", lambda: Health("degraded", ("slow",))):
        assert get(port, "/metrics")[0] == 401
        assert "slow" not in get(port, "/ready")[1].decode()
        assert "slow" in get(port, "/ready", Authorization=f"Bearer {TOKEN}")[1].decode()


def full(port: int, token: str) -> bool:
    """Whether the reasons are for those alone who send the token."""
    shown = get(port, "/ready", Authorization=f"Bearer {token}")[1].decode()
    return "slow" in shown and "slow" not in get(port, "/ready")[1].decode()


@pytest.mark.parametrize("of", ["file of the environment", "settings file", "file that a settings file names"])
def test_a_file_gives_a_token(of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, config = tmp_path / "token", tmp_path / "relaybox.toml"
    secret.write_text(f"{TOKEN}\n")
    if of == "file of the environment":
        monkeypatch.setenv("RELAYBOX_LISTEN_TOKEN_FILE", str(secret))
    else:
        line = f'token = "{TOKEN}"' if of == "settings file" else f'token_file = "{secret}"'
        config.write_text(f"[relaybox.listen]\n{line}\n")
        monkeypatch.setenv("RELAYBOX_CONFIG", str(config))
    port = free_port()
    with serving(f"127.0.0.1:{port}", lambda: Health("degraded", ("slow",))):
        assert full(port, TOKEN)


Made = Callable[[str, Settings], Service]
SERVICES: dict[str, Made] = {
    "outbox": lambda url, settings: Outbox(url, settings=settings).deliver(lambda event: None),
    "group": lambda url, settings: Outbox(url, settings=settings).topics.group("t", "g").deliver(lambda event: None),
    "inbox": lambda url, settings: Inbox(url, settings=settings).process(lambda event: None),
    "relay": lambda url, settings: Relay(url, "stdout:", to="x", settings=settings),
    "ingest": lambda url, settings: Ingest("redis://127.0.0.1:1/0?stream=s", Inbox(url), settings=settings),
    "maintainer": lambda url, settings: Maintainer(url, settings=settings),
}


@pytest.mark.parametrize("of", SERVICES)
def test_a_token_that_a_program_gives_in_its_settings_counts(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only one of the environment: pages that were thought closed would be open."""
    url = make_postgres()
    with Outbox(url) as box, Inbox(url) as inbox:
        box.topics.configure(Topic.pub_sub("t"))
        inbox.migrate()
    service, port = SERVICES[of](url, Settings(listen=ListenSettings(token=TOKEN))), free_port()
    with ThreadPoolExecutor() as pool:
        monkeypatch.setattr("relaybox.service.signalled", lambda loop, stop: nullcontext())
        running = pool.submit(service.run, listen=f"127.0.0.1:{port}")
        try:
            wait_until(lambda: running.done() or answers(port))
            assert get(port, "/metrics")[0] == 401
            assert get(port, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        finally:
            service._ending.set()
        running.result(30)


def answers(port: int) -> bool:
    with suppress(OSError):
        return get(port, "/live")[0] > 0
    return False


def test_a_token_is_shown_nowhere(tmp_path: Path) -> None:
    loaded = explained(environment={"RELAYBOX_LISTEN_TOKEN": TOKEN})
    assert TOKEN not in repr(loaded)
    assert loaded.settings.listen.bearer() == TOKEN
    assert [one.value for one in loaded.origins if one.path == "listen.token"] == ["***"]
    (tmp_path / "relaybox.toml").write_text("[relaybox.listen]\ntoken = 4711\n")
    with pytest.raises(ConfigError, match=r"expected listen\.token to be of type str, got one of type int"):
        Settings.load(tmp_path / "relaybox.toml", environment={})


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b" \n", "is empty"), (b"\xff", "is not text")])
def test_a_file_without_a_token_is_refused(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        ListenSettings(token_file=str(path)).bearer()
    with pytest.raises(ConfigError, match="got both"):
        ListenSettings(token=TOKEN, token_file=str(path))

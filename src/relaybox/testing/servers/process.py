"""Life of one private server process: account, folder, port, start, readiness, end."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
REBIND_SECONDS = 10.0
PORT_ATTEMPTS = 5
PROGRAMS_VARIABLE = "RELAYBOX_PROGRAMS"
MEMORY = Path("/dev/shm")
ROOM = 4 << 30


class ServerUnavailable(RuntimeError):
    """The server's program is not on this machine; says how to get it."""

    def __init__(self, name: str, how_to_get: str) -> None:
        super().__init__(f"{name} is not available here. To get it: {how_to_get}")
        self.name = name
        self.how_to_get = how_to_get

    def __reduce__(self) -> tuple[type[ServerUnavailable], tuple[str, str]]:
        return type(self), (self.name, self.how_to_get)


class ServerFailed(RuntimeError):
    """The server is here but did not start, stop or answer; carries the end of its log."""


class NoAnswer(ServerFailed):
    """The server runs and is silent."""


class PortTaken(Exception):
    """Somebody else bound the port between our choosing it and the server's asking for it."""


@dataclass(frozen=True)
class Account:
    """The unprivileged account a server runs as when the tests themselves run as root."""

    name: str
    uid: int
    gid: int


def unprivileged_account(*preferred: str) -> Account | None:
    """None when we are not root (servers then run as ourselves), else the first account that exists."""
    if os.geteuid() != 0:
        return None
    import pwd

    for name in (*preferred, "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerUnavailable("an unprivileged account", "run the tests as a user other than root")


def reachable(path: Path, account: Account | None) -> bool:
    """Whether `account` may enter every folder down to `path` and read it; ourselves (None) always may."""
    if account is None:
        return True
    path = path.resolve()
    for step in (path, *path.parents):
        status = step.stat()
        if status.st_uid == account.uid:
            shift = 6
        elif status.st_gid == account.gid:
            shift = 3
        else:
            shift = 0
        needed = 0o5 if step == path else 0o1
        if (status.st_mode >> shift) & needed != needed:
            return False
    return True


def roomy(place: Path) -> bool:
    """Whether files of tests may lie there."""
    return place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > ROOM


def free_port() -> int:
    """A port the kernel considers free right now; the caller must cope with losing it again."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def named_program(*names: str) -> Path | None:
    """First of `names` in the folder that RELAYBOX_PROGRAMS names: another server than the machine's."""
    if folder := os.environ.get(PROGRAMS_VARIABLE):
        return next((Path(folder, name) for name in names if Path(folder, name).exists()), None)
    return None


def find_program(*names: str) -> Path | None:
    """First of `names` in the named folder, on the PATH or in the sbin folders, which an ordinary user's PATH leaves
    out."""
    if named := named_program(*names):
        return named
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    for name in names:
        found = shutil.which(name, path=search)
        if found:
            return Path(found)
    return None


def program(what: str, how_to_get: str, *names: str) -> Path:
    """As `find_program`, or says how to get `what`."""
    found = find_program(*names)
    if found is None:
        raise ServerUnavailable(what, how_to_get)
    return found


def client_library(module: str, how_to_get: str) -> Any:
    """A client that the test kit uses, imported at its first use: the kit needs none before."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ServerUnavailable(f"{module} (which the test kit uses)", how_to_get) from error


class PrivateServer(ABC):
    """A server process of our own: loopback port, temporary folder, nothing left behind.

    `stop` keeps port and folder so that `start` continues where the server was; `close` (also called on
    leaving a `with` block and at interpreter exit) removes the folder.
    """

    kind: ClassVar[str]
    quick_stop: ClassVar[signal.Signals] = signal.SIGQUIT
    """Signal that ends the server at once but lets it release shared memory and sockets."""

    in_memory = False
    """Whether the folder lies in memory where the machine has room for it: nothing then waits for the disk."""

    def __init__(self, account: Account | None, *, tls: bool = False) -> None:
        self._account = account
        self._tls = tls
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    # What a kind of server has to say about itself

    def _prepare(self) -> None:
        """Fill the fresh folder (initdb and the like); called once."""
        if self._tls:
            self._make_certificate()

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """Command line that runs the server in the foreground on `self.port`."""

    @abstractmethod
    def _answering_folder(self) -> str:
        """Connect and return the folder the answering server lives in; raise while it is not ready.

        A mere connection is no proof: if the port was lost, a neighbour's server may be the one answering.
        """

    # State

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerFailed(f"{self.kind} has not been started")
        return self._port

    @property
    def pid(self) -> int:
        """Process id of the server's main process."""
        if self._process is None:
            raise ServerFailed(f"{self.kind} is not running")
        return self._process.pid

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ServerFailed(f"{self.kind} has no folder before its start")
        return self._folder

    @property
    def ca_file(self) -> Path:
        """Authority to trust, for the kinds that can be had with TLS."""
        return self.folder / "cert.pem"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    def log_tail(self, lines: int = 30) -> str:
        """The last lines the server wrote, for failure messages."""
        if self._folder is None or not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    # Start and stop

    def start(self) -> Self:
        """Start and wait until the server answers; does nothing when it is running already."""
        if self.running:
            return self
        if self._folder is None:
            self._make_folder()
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise
        self._bring_up(first_start=self._port is None)
        return self

    def _bring_up(self, *, first_start: bool) -> None:
        deadline = time.monotonic() + REBIND_SECONDS
        attempt = 0
        forgiven = not first_start
        while True:
            attempt += 1
            if first_start:
                self._port = free_port()
            try:
                self._launch()
                self._wait_until_ready()
            except PortTaken:
                # A restart must keep its port: a client that hammers it may hold it for a moment (TCP lets a
                # socket connect to itself in the ephemeral range), so wait for it instead of moving on.
                self._end(signal.SIGKILL)
                if attempt >= PORT_ATTEMPTS if first_start else time.monotonic() > deadline:
                    raise ServerFailed(f"{self.kind} got no port\n{self.log_tail()}") from None
                time.sleep(0 if first_start else 0.2)
            except BaseException as error:
                self._end(signal.SIGKILL)
                if isinstance(error, NoAnswer) and not forgiven:
                    forgiven = True  # a broker on a busy machine may hang in its first start; what it said is kept
                    continue
                if first_start:
                    self.close()
                raise
            else:
                return

    def kill(self) -> None:
        """SIGKILL to the whole process group: what an out-of-memory kill looks like."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End the server at once and remove its folder. A forked child that inherited us must not do this."""
        if os.getpid() != self._owner:
            return
        self._end(self.quick_stop, patience=5.0)
        if self._folder is not None:
            for _ in range(20):
                shutil.rmtree(self._folder, ignore_errors=True)
                if not self._folder.exists():
                    break
                time.sleep(0.05)
        self._folder = None
        self._port = None
        self._dismiss_guard()
        _living.discard(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # Tools for the kinds of server

    def _run(self, command: Sequence[str | Path], timeout: float = START_SECONDS) -> str:
        """Run a preparing program under the server's account; its output goes into the error if it fails."""
        try:
            done = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
                **self._surroundings(),
            )
        except subprocess.TimeoutExpired as error:
            raise ServerFailed(f"{command[0]} did not end within {timeout:.0f} s") from error
        output: str = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            tail = "\n".join(output.splitlines()[-30:])
            raise ServerFailed(f"{command[0]} ended with status {done.returncode}\n{tail}")
        return output

    def _write(self, name: str, text: str) -> Path:
        """Write a file the server's account can read."""
        path = self.folder / name
        path.write_text(text)
        self._give(path)
        return path

    def _within_reach(self, path: Path) -> Path:
        """`path` itself, or a copy in our folder when it lies where the server's account cannot go (/root)."""
        if reachable(path, self._account):
            return path
        copy = self.folder / path.name
        if path.is_dir():
            shutil.copytree(path, copy)
        else:
            shutil.copy(path, copy)
        for each in (copy, *copy.rglob("*")):
            self._give(each)
            each.chmod(each.stat().st_mode | 0o500)
        return copy

    def _make_certificate(self) -> None:
        """`ca_file` (a certificate that is its own authority) and `key.pem`, for the loopback address."""
        openssl = program("openssl", "apt-get install openssl (or your system's package)", "openssl")
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"]
        names = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{LOOPBACK},DNS:localhost"]
        usage = ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
        self._run([openssl, "req", "-x509", *key, "-out", self.ca_file, "-days", "2", *names, *usage])

    def _end(self, number: signal.Signals, patience: float = STOP_SECONDS) -> bool:
        """Signal the main process and wait; after `patience` kill the group. False if it had to be killed."""
        process = self._process
        if process is None or os.getpid() != self._owner:
            return True
        willing = True
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                willing = False
        with contextlib.suppress(ProcessLookupError):  # helpers the main process left in its group go too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._process = None
        self._tell_guard("0")
        return willing

    # Inner workings

    def _surroundings(self) -> dict[str, Any]:
        # A clean environment: PGHOST, MYSQL_HOME or a locale of the machine must not change the outcome.
        arguments: dict[str, Any] = {
            "cwd": self.folder,
            "env": {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(self.folder),
                "TMPDIR": str(self.folder),
                "LC_ALL": "C",
                "TZ": "UTC",
            },
        }
        if self._account is not None:
            arguments |= {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        return arguments

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    def _make_folder(self) -> None:
        parent = MEMORY if self.in_memory and roomy(MEMORY) else Path(tempfile.gettempdir())
        if not reachable(parent, self._account):
            parent = Path("/tmp")  # the one folder every account may enter
        self._folder = Path(tempfile.mkdtemp(prefix=f"relaybox-{self.kind}-", dir=parent)).resolve()
        self._give(self._folder)
        self._guard = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(__file__).with_name("guard.py")),
                str(self._folder),
                str(int(self.quick_stop)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        _living.add(self)

    def _launch(self) -> None:
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [str(part) for part in self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._surroundings(),
            )
        self._tell_guard(str(self._process.pid))

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        last: Exception | None = None
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                if self._lost_port():
                    raise PortTaken
                status = self._process.returncode
                raise ServerFailed(f"{self.kind} ended with status {status} at its start\n{self.log_tail()}")
            try:
                answering = self._answering_folder()
            except (ServerUnavailable, ServerFailed):
                raise
            except Exception as error:  # drivers have no common class for "not yet"
                last = error
            else:
                if Path(answering).resolve().is_relative_to(self.folder):
                    return
            if self._lost_port():  # not every server gives up for that: RabbitMQ runs on without a listener
                raise PortTaken
            time.sleep(0.02)
        raise NoAnswer(
            f"{self.kind} gave no answer within {START_SECONDS:.0f} s (last error: {last})\n{self._last_words()}"
        )

    def _last_words(self) -> str:
        """What a silent server can still say of itself."""
        return self.log_tail()

    def _lost_port(self) -> bool:
        said = self._said_since_start().lower()
        return b"address already in use" in said or b"eaddrinuse" in said

    def _said_since_start(self) -> bytes:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read()

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ValueError):
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()

    def _dismiss_guard(self) -> None:
        if self._guard is None:
            return
        self._tell_guard("closed")
        with contextlib.suppress(OSError):
            self._guard.communicate(timeout=5.0)
        self._guard = None


class RestartableServer(PrivateServer):
    """A server that ends in order on SIGTERM and comes back on the same port, with the same folder."""

    quick_stop = signal.SIGKILL

    def stop(self) -> None:
        """An orderly shutdown."""
        self.resume()
        if not self._end(signal.SIGTERM):
            raise ServerFailed(f"{self.kind} ignored an orderly stop and was killed\n{self.log_tail()}")

    def restart(self, kill: bool = True) -> None:
        """Same port, same data; with `kill` by SIGKILL, so that the next start has to recover."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze every process of the server: connections stay open, nothing answers."""
        self._signal_group(signal.SIGSTOP)
        if self.running and hasattr(os, "waitid"):  # until it has stopped: what runs at this moment may still answer
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal_group(signal.SIGCONT)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.running:
            os.killpg(self.pid, number)


_living: set[PrivateServer] = set()


@atexit.register
def close_all() -> None:
    """End every server this process started; a forked child's copies are left alone by `close`."""
    for server in list(_living):
        with contextlib.suppress(Exception):
            server.close()

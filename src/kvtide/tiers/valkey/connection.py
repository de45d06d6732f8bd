"""Connections, by the official client: it connects, authenticates and encrypts; values go their own short way."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import valkey
from valkey.exceptions import ResponseError, ValkeyError

from kvtide.tiers.backend import BackendDown
from kvtide.tiers.valkey.options import Access
from kvtide.tiers.valkey.protocol import Array, Command, Reply, ReplyParser, send_commands

T = TypeVar("T")
_SILENCES_MAX = 10
"""A batch may take this many times the longest silence: a server that trickles is as bad as one that is silent."""
_LOST = (ValkeyError, OSError, ValueError)
"""What a lost connection raises, or a server that talks nonsense. Time-outs and TLS errors are of `OSError`."""
_CLUSTER = ("MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT")
_UNUSABLE = ("NOAUTH", "WRONGPASS", "LOADING", "MASTERDOWN", "DENIED", *_CLUSTER)
"""Replies that say: not this server, not this user, or not now."""


class Connection:
    """A connection, for one thread at a time, which connects when it is used.

        with connection:
            connection.send(commands)
            replies = [connection.reply() for _ in commands]

    `silence_s` bounds each wait: for the connection, for the socket to take bytes, for bytes to come. Leaving the
    block by an exception, or with replies still on their way, closes the connection; so no reply is ever taken for
    that to another question. Whatever goes wrong is raised as `BackendDown`.
    """

    def __init__(self, access: Access, silence_s: float) -> None:
        self._silence_s = silence_s
        self._client = _client_of(access, silence_s)
        self._awaited = 0
        self._until_s = float("inf")

    @property
    def _replies(self) -> ReplyParser:
        parser: ReplyParser = self._client._parser
        return parser

    def __enter__(self) -> Connection:
        self._awaited = 0
        if self._has_gone_stale():
            self.close()
        is_new = self._client._sock is None
        try:
            self._client.connect()
            if is_new:
                _let_the_system_wait(self._client._sock, self._silence_s)
        except _LOST as error:
            self.close()
            raise BackendDown(_reason(error)) from None  # frames of the client have the password in them
        self.more_time()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None or self._awaited:
            self.close()
        if isinstance(error, _LOST):
            raise BackendDown(_reason(error)) from None

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one go and return a reply for each."""
        with self:
            self.send(commands)
            return [self.reply() for _ in commands]

    def send(self, commands: Iterable[Command]) -> None:
        """Send commands; their replies are awaited from now on."""
        commands = tuple(commands)
        self._awaited += len(commands)
        send_commands(self._client._sock, commands, until_s=self._until_s)

    def reply(self) -> Reply:
        """Read the whole reply to a command. Errors that concern a single key are values."""
        reply = self._replies.read_response()
        self._received(reply)
        return reply

    def array(self, head_bytes: int, bodies: Sequence[memoryview], others: Sequence[bytes]) -> Array:
        """Read the reply to a command that asks for values. See `ReplyParser.read_array`."""
        array = self._replies.read_array(head_bytes, bodies, others)
        self._received(array)
        if isinstance(array, ResponseError):
            raise array
        return array

    def more_time(self) -> None:
        """Begin the time of the next batch."""
        self._until_s = time.monotonic() + _SILENCES_MAX * self._silence_s
        self._replies.must_end_by(self._until_s)

    def close(self) -> None:
        """Close the socket, if there is one."""
        self._client.disconnect()

    def _has_gone_stale(self) -> bool:
        """Say whether something came while nothing was asked: mostly the end, as when the server was restarted."""
        sock = self._client._sock
        if sock is None:
            return False
        if self._replies.can_read(0):
            return True
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))

    def _received(self, reply: object) -> None:
        self._awaited -= 1
        if isinstance(reply, ResponseError) and code_of(reply) in _UNUSABLE:
            raise reply


class Connections:
    """Lends each caller a connection of its own. The one used last goes out first: idle ones stay idle."""

    def __init__(self, access: Access, silence_s: float) -> None:
        self._access = access
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """Lend a connection. Callers are threads of one bounded pool, so the number of connections is bounded too."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or Connection(self._access, self._silence_s)
        try:
            yield connection
        finally:
            with self._lock:
                self._idle.append(connection)

    def close(self) -> None:
        """Close all connections. Nobody has one any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def good(reply: T | ResponseError) -> T:
    """Return a reply unless it is an error: then nothing can be done with this server, or by this user."""
    if isinstance(reply, ResponseError):
        raise BackendDown(f"it says: {reply}")
    return reply


def code_of(error: ResponseError) -> str:
    """Return the first word of an error, which says what kind it is: OOM, READONLY, WRONGTYPE."""
    return str(error).partition(" ")[0]


def _reason(error: BaseException) -> str:
    """Say what happened in words that an operator can act on."""
    if isinstance(error, ResponseError):
        if code_of(error) in _CLUSTER:
            return f"it is part of a cluster, which kvtide does not speak to ({code_of(error)})"
        return f"it says: {str(error)[:200]}"
    if isinstance(error, BlockingIOError):  # how the system says so
        return "timed out"
    return str(error)[:200] or type(error).__name__


def _let_the_system_wait(sock: socket.socket, silence_s: float) -> None:
    """Have the system itself bound each wait: a time-out of Python's costs one more system call before each of them.

    What TLS waits for is not known to the system, and stays Python's.
    """
    if sys.platform != "linux" or isinstance(sock, ssl.SSLSocket):
        return
    seconds, microseconds = divmod(max(1, round(silence_s * 1e6)), 10**6)  # zero would be for ever
    limit = struct.pack("@ll", seconds, microseconds)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.settimeout(None)


def _client_of(access: Access, silence_s: float) -> Any:
    """Return a connection of the client's that has not connected yet. It tries once: retries are the breaker's."""
    address = access.address
    options: dict[str, Any] = {
        "db": address.database,
        "username": access.username,
        "password": access.password,
        "socket_timeout": silence_s,
        "socket_connect_timeout": silence_s,
        "parser_class": ReplyParser,
        "lib_name": "kvtide",  # not client_name: ACL users may lack the right to set one, and that would be an error
        "lib_version": None,
    }
    kind: Any = valkey.UnixDomainSocketConnection
    if address.path:
        return kind(path=address.path, **options)
    options |= {"host": address.host, "port": address.port, "socket_keepalive": True}
    kind = valkey.Connection
    if address.tls:
        kind = valkey.SSLConnection
        options |= {
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,  # the client's default is not to look
            "ssl_ca_certs": access.tls_ca,
            "ssl_certfile": access.tls_cert,
            "ssl_keyfile": access.tls_key,
        }
    return kind(**options)

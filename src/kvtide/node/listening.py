"""The socket in the file system: one node at a time, only for those who may connect, gone when the node is.

Beside it is a lock, `PATH.lock`, which the kernel gives back when the node dies. Who has it may replace what a dead
node has left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.node.errors import Gone
from kvtide.node.socket_path import check_socket_path

_BACKLOG = 128
_OWN, _OWN_AND_GROUP = 0o600, 0o660


class Listening:
    """Listens at a path, for the own user and perhaps one group, until it is closed."""

    def __init__(self, path: Path, group: int | None = None) -> None:
        self.path = path
        check_socket_path("socket", path)
        self._lock = _Lock(path.with_name(path.name + ".lock"), path)
        try:
            _remove_stale(path)
            self.socket = _listen(path, group)
        except BaseException:
            self._lock.close()
            raise
        self._identity = _identity(path)

    def accept(self) -> socket.socket | None:
        """Return the next connection; None if there is none any more.

        Raises:
            Gone: the system cannot give one, as with too many open files.

        """
        try:
            return self.socket.accept()[0]
        except (BlockingIOError, ConnectionError):
            return None
        except OSError as error:
            raise Gone(f"nobody can connect at the moment ({error.strerror})") from error

    def close(self) -> None:
        """Listen no more, and remove the socket if it is still ours. May be called again."""
        self.socket.close()
        if self._identity is not None and _identity(self.path) == self._identity:
            self.path.unlink(missing_ok=True)
        self._identity = None
        self._lock.close()


class _Lock:
    """A locked file, removed when it is given back."""

    def __init__(self, path: Path, socket_path: Path) -> None:
        self._path = path
        self._descriptor = -1
        while self._descriptor < 0:
            self._descriptor = self._locked(socket_path)

    def _locked(self, socket_path: Path) -> int:
        """Return a descriptor with the lock, or -1 if the file was removed by the one who had it."""
        try:
            found = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWN)
        except OSError as error:
            why = f"a place where this user can make files ({error.strerror}: {self._path})"
            raise ConfigError("socket", str(socket_path), why) from error
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            who = os.pread(found, 20, 0).decode(errors="replace").strip() or "?"
            os.close(found)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            why = (
                f"a path of its own for each node: process {who} is a node that listens there; stop it, or name another"
            )
            raise ConfigError("socket", str(socket_path), why) from None
        if _identity(self._path) != _identity(found):
            os.close(found)
            return -1
        os.ftruncate(found, 0)
        os.pwrite(found, f"{os.getpid()}\n".encode(), 0)
        return found

    def close(self) -> None:
        """Remove the file, and give the lock back."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1


def _remove_stale(path: Path) -> None:
    """Remove the socket of a node that is dead, and nothing else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(
            "socket",
            str(path),
            "a path where nothing is yet, or the socket of a node that has ended; remove what is there",
        )
    if found.st_uid != os.geteuid():
        raise ConfigError("socket", str(path), f"a path of your own; user {found.st_uid} has a socket there")
    if _somebody_listens(path):
        raise ConfigError("socket", str(path), "a path of its own; another program listens there")
    path.unlink()


def _somebody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) != errno.ECONNREFUSED


def _listen(path: Path, group: int | None) -> socket.socket:
    """Bind and listen. Nobody else can connect at any moment: the file begins with the narrowest permissions."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    before = os.umask(0o777 & ~_OWN)
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        sock.close()
        raise ConfigError("socket", str(path), f"a path to listen at ({error.strerror})") from error
    finally:
        os.umask(before)
    try:
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(_OWN_AND_GROUP)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        path.unlink(missing_ok=True)
        raise ConfigError("group", group, f"a group that this user may give a socket to ({error.strerror})") from error
    return sock


def _identity(file: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file, follow_symlinks=isinstance(file, int))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino

"""Who uses a folder: a lock that goes with its process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from kvtide.tiers.disk.file_io import FILE_MODE

LOCK_NAME = "lock"
_RETRY_S = 0.01


class Held(Exception):
    """Somebody else has the lock."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        super().__init__(f"process {pid}" if pid else "another process")


class FolderLock:
    """Taken when made, held until `close` or the end of the process. The file says whose it is, for people.

    Who holds it may remove the file: others, who had opened it before, notice, and take the new one.
    """

    def __init__(self, folder: Path, *, timeout_s: float = 0.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while (file := _locked(folder / LOCK_NAME)) is None:
            if time.monotonic() >= deadline_s:
                raise Held(holder(folder))
            time.sleep(_RETRY_S)
        self._file = file

    def close(self) -> None:
        """Let others in. May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def holder(folder: Path) -> int | None:
    """Return the process that holds a folder's lock, 0 if it does not say, None if nobody does. Changes nothing."""
    try:
        file = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _pid_in(file) or 0
    else:
        return None
    finally:
        os.close(file)


def _locked(path: Path) -> int | None:
    """Open a file and lock it. None: somebody else has the lock."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                _sign(file)
                return file
            os.close(file)
        except (BlockingIOError, PermissionError):  # the latter on some network file systems
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise


def _sign(file: int) -> None:
    """Write who has the lock. On a disk that is full, where it may be needed most, it is had without."""
    name = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(file, name, 0)  # first: what is given up on a full disk does not come back
    except OSError:
        name = b""
    with contextlib.suppress(OSError):
        os.ftruncate(file, len(name))


def _is_at(path: Path, file: int) -> bool:
    """Whether an open file was not removed."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _pid_in(file: int) -> int | None:
    try:
        return int(os.pread(file, 32, 0))
    except (OSError, ValueError):
        return None

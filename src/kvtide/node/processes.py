"""Whether the process at the other end of a connection still lives: a descriptor that can be read once it has exited.

By then its files are closed, and with them what its GPU was doing.
"""

from __future__ import annotations

import errno
import os
import socket

from kvtide.node.errors import Refused

_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def process_of(sock: socket.socket, pid: int) -> int | None:
    """Return a pidfd of the process that connected; None where it cannot be had, or where the process is gone.

    Raises `Refused` where there could be one later: nobody takes memory whose end would not be noticed (I10).
    """
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        _refuse_if_full(error)
        return _opened(sock, pid)


def _opened(sock: socket.socket, pid: int) -> int | None:
    """Open it by its number, on older kernels. In another namespace of processes the number is 0."""
    if pid <= 0:
        return None
    try:
        found = os.pidfd_open(pid)
    except OSError as error:
        _refuse_if_full(error)
        return None
    # While the connection is open its process lives, so that its number was not given to another one.
    if _is_closed(sock):
        os.close(found)
        return None
    return found


def _refuse_if_full(error: OSError) -> None:
    if error.errno in _FULL:
        why = f"the node cannot watch this process at the moment ({error.strerror})"
        raise Refused(why, for_good=False) from error


def _is_closed(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True

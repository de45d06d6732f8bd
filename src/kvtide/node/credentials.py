"""Who is at the other end of a connection, as the kernel says it, and whether that is somebody to talk to."""

from __future__ import annotations

import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from kvtide.node.errors import Refused

_SO_PEERGROUPS = 59  # Python has no name for it
_BYTES_MAX = 1024  # of what Python's getsockopt can return: 256 groups
_PEERCRED = struct.Struct("3i")
_GROUP_MAY_CONNECT = stat.S_IRGRP | stat.S_IWGRP


@dataclass(frozen=True, slots=True)
class Credentials:
    """Of a process, when it connected or began to listen."""

    pid: int
    """0: it is in another namespace of processes, out of our sight."""
    uid: int
    groups: frozenset[int]


def credentials_of(sock: socket.socket) -> Credentials:
    """Return those of the process at the other end."""
    pid, uid, gid = _PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _BYTES_MAX)
    except OSError:  # an old kernel, or more groups than can be told
        more = b""
    return Credentials(pid, uid, frozenset((gid, *(group for (group,) in struct.iter_unpack("I", more)))))


@dataclass(frozen=True, slots=True)
class Access:
    """Who may connect to a node: its own user, and the members of one group. Root is nobody special."""

    uid: int
    group: int | None = None

    def check(self, peer: Credentials) -> None:
        """Raise `Refused` for everybody else."""
        if peer.uid != self.uid and (self.group is None or self.group not in peer.groups):
            allowed = f"user {self.uid}" + ("" if self.group is None else f" and group {self.group}")
            what = "start the node with a --group of both" if self.group is None else "become a member of that group"
            why = f"this node is for {allowed}, and this is user {peer.uid}"
            raise Refused(f"{why}: run as user {self.uid}, or {what}", for_good=True)


def check_node(path: Path, node: Credentials) -> None:
    """Raise `Refused` if an engine must not trust the node that listens at a path.

    In a folder where everybody can write, anybody can be first to listen at a path that is not theirs.
    """
    if node.uid in (os.geteuid(), 0):
        return
    found = path.stat()
    shared = found.st_uid == node.uid and found.st_mode & _GROUP_MAY_CONNECT == _GROUP_MAY_CONNECT
    if not shared or found.st_gid not in {os.getegid(), *os.getgroups()}:
        why = f"the node at {path} is of user {node.uid}, and this is user {os.geteuid()}"
        what = f"start a node of your own, run as user {node.uid}, or start theirs with a --group of both"
        raise Refused(f"{why}: {what}", for_good=True)

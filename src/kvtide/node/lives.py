"""Lives of engines, with what has to be done about them: descriptors of their processes, and telling the handler."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial

from kvtide.node.handler import Handler
from kvtide.node.hello import Hello, Role
from kvtide.node.loop import READ, Loop
from kvtide.node.owners import Changes, Member, Owners
from kvtide.node.processes import process_of


class Lives:
    """Watches the processes of all members. `hang_up` closes the connection of one."""

    def __init__(self, loop: Loop, owners: Owners, handler: Handler, hang_up: Callable[[Member], None]) -> None:
        self.owners = owners
        self._loop = loop
        self._handler = handler
        self._hang_up = hang_up
        self._processes: dict[int, int] = {}
        """Descriptors of processes, by the numbers of members. They outlive the connections."""

    @property
    def waited_for(self) -> int:
        """How many members have no connection any more, and are not known to be quiet."""
        members = (member for owner in self.owners for member in owner.members.values())
        return sum(not member.is_connected and not member.is_quiet for member in members)

    def enter(self, hello: Hello, sock: socket.socket, pid: int) -> Member:
        """Add a scheduler, whose life begins, or one of its workers. Raises `Refused`."""
        process = process_of(sock, pid)
        try:
            if hello.role is Role.SCHEDULER:
                member = self.owners.open(hello.engine, "", pid=pid, is_watched=process is not None)
            else:
                watched = process is not None
                self._apply(self.owners.came_again(hello.worker))
                member = self.owners.join(
                    hello.owner, rank=hello.rank, pid=pid, is_watched=watched, worker=hello.worker
                )
        except BaseException:
            if process is not None:
                os.close(process)
            raise
        if process is not None:
            self._processes[member.number] = process
            self._loop.watch(process, READ, partial(self._exited, member))
        return member

    def dismiss(self, member: Member) -> None:
        """Forget a member that was refused after all."""
        self.owners.dismiss(member)
        self._unwatch(member.number)

    def closed(self, member: Member) -> None:
        """Its connection has ended."""
        self._apply(self.owners.closed(member.number, time.monotonic()))

    def drained(self, member: Member) -> None:
        """A member says that it copies no more."""
        self._apply(self.owners.drained(member.number))

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        self._apply(self.owners.passed(now_s))

    def close(self) -> None:
        """Watch nobody any more."""
        for number in list(self._processes):
            self._unwatch(number)

    def _exited(self, member: Member, _: int) -> None:
        self._hang_up(member)  # what it has said counts
        self._unwatch(member.number)
        self._apply(self.owners.exited(member.number, time.monotonic()))

    def _apply(self, changes: Changes) -> None:
        for member in changes.gone:
            self._unwatch(member.number)
        for member in changes.hang_up:
            self._hang_up(member)
        for owner in changes.ending:
            self._handler.ending(owner)
        for owner in changes.over:
            self._handler.over(owner)

    def _unwatch(self, number: int) -> None:
        process = self._processes.pop(number, None)
        if process is not None:
            self._loop.forget(process)
            os.close(process)

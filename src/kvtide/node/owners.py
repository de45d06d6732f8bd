"""Who holds something at the node, and from when on they cannot touch it any more. Decides only: no I/O, no clock.

An *owner* is one life of an engine: the connections of its scheduler and of its workers, its *members*.

    OPEN ── the scheduler's connection ends, or that of a worker that is not quiet ──► ENDING ── all are quiet ──► over

An owner that is ending looks up and reserves no more: its scheduler's connection is closed. What it was writing must
not be used by others yet: the last copies of its workers may still run. A worker is *quiet* when its process has
exited, when it has said that its copies have ended ("drained"), or, where the node cannot see its process, some time
after its connection has ended. A scheduler has no memory of the node, and is quiet when its connection has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from kvtide.node.errors import Refused

SCHEDULER, WORKER = "scheduler", "worker"
GRACE_S = 30.0
"""How long a process that cannot be seen may copy after its connection was closed. Copies take milliseconds."""


class State(Enum):
    """Of an owner."""

    OPEN = "open"
    ENDING = "ending"


@dataclass(slots=True, eq=False)
class Member:
    """One process of an owner."""

    number: int
    owner: Owner
    role: str
    rank: int
    pid: int
    is_watched: bool
    """Its exit will be noticed."""
    worker: str = ""
    """The name that it came under, and may come again under."""
    is_connected: bool = True
    is_quiet: bool = False
    closed_s: float = 0.0


@dataclass(slots=True, eq=False)
class Owner:
    """One life of an engine."""

    number: int
    engine: str
    namespace: str
    takes_notices: bool = False
    state: State = State.OPEN
    members: dict[int, Member] = field(default_factory=dict)
    far: dict[int, str] = field(default_factory=dict)
    """By rank: that its memory is not next to its GPU, in words."""


@dataclass(slots=True)
class Changes:
    """What follows from an event."""

    ending: list[Owner] = field(default_factory=list)
    """They are ending from now on: what they hold is in quarantine."""
    hang_up: list[Member] = field(default_factory=list)
    """Their connections have to be closed, and count as closed already."""
    over: list[Owner] = field(default_factory=list)
    """They cannot touch anything any more: what they held is free again."""
    gone: list[Member] = field(default_factory=list)
    """Their processes need not be watched any more."""


class Owners:
    """All of them. Events about members that are not known any more change nothing."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._owners: dict[int, Owner] = {}
        self._members: dict[int, Member] = {}
        self._numbers = 0

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._owners.values())

    @property
    def members(self) -> int:
        """How many there are, connected or not."""
        return len(self._members)

    def open(self, engine: str, namespace: str, *, pid: int, is_watched: bool) -> Member:
        """Begin a life with its scheduler. Earlier lives of the same engine may still be ending, or even be open."""
        owner = Owner(self._number(), engine, namespace)
        self._owners[owner.number] = owner
        return self._add(owner, SCHEDULER, 0, pid, is_watched)

    def join(self, number: int, *, rank: int, pid: int, is_watched: bool, worker: str = "") -> Member:
        """Add a worker. Raises `Refused` if that life is not open, or has this rank."""
        owner = self._owners.get(number)
        if owner is None or owner.state is not State.OPEN:
            raise Refused("the scheduler of this worker is not connected any more", for_good=False)
        for member in owner.members.values():
            if (member.role, member.rank) == (WORKER, rank):
                why = f"rank {rank} of engine {owner.engine} is connected already (process {member.pid})"
                raise Refused(why, for_good=False)
        member = self._add(owner, WORKER, rank, pid, is_watched)
        member.worker = worker
        return member

    def came_again(self, worker: str) -> Changes:
        """A worker says hello: what it had copied before has ended, though it could not say so then."""
        changes = Changes()
        if worker:
            for member in [each for each in self._members.values() if each.worker == worker]:
                self._quiet(member.number, changes)
        return changes

    def dismiss(self, member: Member) -> None:
        """Forget a member that was refused after all, before it was told anything; with it an owner that it opened."""
        self._forget(member)
        if not member.owner.members:
            del self._owners[member.owner.number]

    def closed(self, number: int, now_s: float) -> Changes:
        """A connection has ended."""
        changes = Changes()
        member = self._members.get(number)
        if member is not None and member.is_connected:
            member.is_connected, member.closed_s = False, now_s
            member.is_quiet = member.is_quiet or member.role == SCHEDULER
            changes.gone += [member] * member.is_quiet
            if member.role == SCHEDULER or not member.is_quiet:
                self._end(member.owner, now_s, changes)
            elif member.owner.state is State.OPEN:  # it has left in good order, and may come again
                self._forget(member)
            self._forget_if_over(member.owner, changes)
        return changes

    def exited(self, number: int, now_s: float) -> Changes:
        """A process has exited: its connection does not count any more, though a child of it may hold it open."""
        changes = self.closed(number, now_s)
        self._quiet(number, changes)
        return changes

    def drained(self, number: int) -> Changes:
        """A worker says that no copy of it is under way, nor will be. Nobody else knows, or is asked (I10)."""
        changes = Changes()
        self._quiet(number, changes)
        return changes

    def passed(self, now_s: float) -> Changes:
        """Time has passed: those that cannot be seen have had their time."""
        changes = Changes()
        for member in list(self._members.values()):
            unseen = not member.is_connected and not member.is_watched and not member.is_quiet
            if unseen and now_s - member.closed_s >= self._grace_s:
                self._quiet(member.number, changes)
        return changes

    def _quiet(self, number: int, changes: Changes) -> None:
        member = self._members.get(number)
        if member is not None and member.role == WORKER:
            member.is_quiet = True
            changes.gone += [member] * (not member.is_connected)
            self._forget_if_over(member.owner, changes)

    def _end(self, owner: Owner, now_s: float, changes: Changes) -> None:
        if owner.state is State.OPEN:
            owner.state = State.ENDING
            changes.ending.append(owner)
            for member in owner.members.values():
                if member.role == SCHEDULER and member.is_connected:
                    member.is_connected, member.is_quiet, member.closed_s = False, True, now_s
                    changes.hang_up.append(member)
                    changes.gone.append(member)

    def _forget_if_over(self, owner: Owner, changes: Changes) -> None:
        if owner.state is State.ENDING and all(member.is_quiet for member in owner.members.values()):
            changes.over.append(owner)
            changes.hang_up += [member for member in owner.members.values() if member.is_connected]
            del self._owners[owner.number]
            for member in list(owner.members.values()):
                self._forget(member)
                changes.gone.append(member)

    def _forget(self, member: Member) -> None:
        del self._members[member.number], member.owner.members[member.number]
        if member.role == WORKER:
            member.owner.far.pop(member.rank, None)

    def _add(self, owner: Owner, role: str, rank: int, pid: int, is_watched: bool) -> Member:
        member = Member(self._number(), owner, role, rank, pid, is_watched)
        owner.members[member.number] = self._members[member.number] = member
        return member

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

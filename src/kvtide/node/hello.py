"""Who connects, and what it is told: the first frame of each side.

They are JSON. `protocol` and `kvtide`, and `why` of a refusal, mean the same in all versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from kvtide import __version__
from kvtide.copy.shared_arena import front_bytes
from kvtide.node.errors import BadFrame, Refused
from kvtide.node.frames import Frame, Kind

PROTOCOL = 4
"""One more with every change of what frames hold."""
HELLO_BYTES_MAX = 1 << 16
NAME_CHARS_MAX = 256
SLOWER = "copies are slower (a `kvtide node` for each NUMA node avoids it)"
"""What it means that memory is not next to a GPU."""
_NUMA_NODES = 1024  # the most that Linux knows
_DEPTH_MAX = 16
"""Of a namespace. What is much deeper can be read, but not be written again by whoever is deeper in calls."""


class Role(str, Enum):
    """What a process wants of the node."""

    SCHEDULER = "scheduler"
    """It looks up and reserves. Its connection is the life of an engine at the node."""
    WORKER = "worker"
    """It maps the arenas of its part. Its scheduler tells it the epoch and the number of the owner."""
    OPERATOR = "operator"
    """It asks how the node is."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who connects."""

    role: Role
    engine: str = ""
    namespace: Mapping[str, object] = field(default_factory=dict)
    """All that the bytes depend on; of a worker, what only it knows, with the `block_bytes` of its part."""
    epoch: str = ""
    owner: int = 0
    """Of a worker: which life of which node it belongs to."""
    rank: int = 0
    part: int = 0
    """What this rank holds of a block: ranks that hold the same bytes have the same part."""
    numa_node: int | None = None
    """Where the memory of its part should be, if it knows."""
    worker: str = ""
    """A name that no other worker ever has. One that comes again under it has no copies of before under way."""
    takes_notices: bool = True
    """It knows frames of the kind NOTICE. Those who do not say so would take them for a mistake."""

    def frame(self) -> Frame:
        """Return it as it is sent."""
        return Frame(Kind.HELLO, _packed({**asdict(self), "role": self.role.value}))


@dataclass(frozen=True, slots=True)
class ArenaDescription:
    """What a descriptor is: slot i of it is the part's bytes of block i (`SharedArena`)."""

    part: int
    slots: int
    slot_bytes: int
    nbytes: int
    """Its size: that of all slots, of what is in front of them, and the rest of the last page."""
    row_bytes: int = 0
    """Of a block that does not pack. 0: blocks are not packed."""

    @property
    def front_bytes(self) -> int:
        """What is in front of the slots."""
        return front_bytes(self.slots, self.row_bytes)

    @property
    def used_bytes(self) -> int:
        """All but the rest of the last page."""
        return self.front_bytes + self.slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a node says to those that it takes."""

    epoch: str
    """One life of the node."""
    owner: int = 0
    """One life of the engine."""
    member: int = 0
    """One connection of it."""
    arenas: tuple[ArenaDescription, ...] = ()
    """One for each descriptor that comes with it."""
    more: Mapping[str, object] = field(default_factory=dict)
    """What the index has to say."""

    def frame(self, descriptors: tuple[int, ...] = ()) -> Frame:
        """Return it as it is sent."""
        assert len(descriptors) == len(self.arenas)
        return Frame(Kind.WELCOME, _packed(asdict(self)), descriptors=descriptors)


def refusal(refused: Refused) -> Frame:
    """Return a refusal as it is sent."""
    return Frame(Kind.REFUSED, _packed({"why": refused.why, "for_good": refused.for_good}))


def read_hello(frame: Frame) -> Hello:
    """Return what a client says of itself. Raises `Refused` if it speaks another protocol, `BadFrame` for nonsense."""
    if frame.kind != Kind.HELLO:
        raise BadFrame(f"a frame of kind {frame.kind} before a hello")
    said = _read(frame.body)
    _check_protocol(said, they="the engine", we="this node")
    try:
        role = Role(said.get("role"))
    except ValueError:
        raise BadFrame(f"a hello of a role that is not known: {said.get('role')!r:.80}") from None
    namespace, numa_node = said.get("namespace"), said.get("numa_node")
    if not isinstance(namespace, dict) or _is_deeper(namespace, _DEPTH_MAX):
        raise BadFrame(f"a hello whose namespace is no object, or deeper than {_DEPTH_MAX}")
    return Hello(
        role,
        engine=_name(said, "engine"),
        namespace=namespace,
        epoch=_name(said, "epoch"),
        owner=_count(said, "owner"),
        rank=_count(said, "rank"),
        part=_count(said, "part"),
        numa_node=None if numa_node is None else _count(said, "numa_node", _NUMA_NODES),
        worker=_name(said, "worker"),
        takes_notices=said.get("takes_notices") is True,
    )


def read_welcome(frame: Frame) -> Welcome:
    """Return what a node says. Raises `Refused` if it refuses or speaks another protocol, `BadFrame` for nonsense."""
    if frame.kind not in (Kind.WELCOME, Kind.REFUSED):
        raise BadFrame(f"a frame of kind {frame.kind} instead of an answer to a hello")
    said = _read(frame.body)
    _check_protocol(said, they="this node", we="the engine")
    if frame.kind == Kind.REFUSED:
        raise Refused(" ".join(f"{said.get('why')!s:.500}".split()), for_good=said.get("for_good") is True)
    arenas, more = said.get("arenas"), said.get("more")
    if not isinstance(arenas, list) or len(arenas) != len(frame.descriptors) or not isinstance(more, dict):
        raise BadFrame("a welcome that does not fit its descriptors")
    return Welcome(
        _name(said, "epoch"), _count(said, "owner"), _count(said, "member"), tuple(map(_arena, arenas)), more
    )


def _arena(said: object) -> ArenaDescription:
    if not isinstance(said, dict):
        raise BadFrame("an arena that is no object")
    return ArenaDescription(*(_count(said, name) for name in ("part", "slots", "slot_bytes", "nbytes", "row_bytes")))


def _packed(said: Mapping[str, object]) -> bytes:
    return json.dumps({"protocol": PROTOCOL, "kvtide": __version__, **said}).encode()


def _read(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise BadFrame("a hello that is no JSON") from None
    if not isinstance(said, dict):
        raise BadFrame("a hello that is no object")
    return said


def _check_protocol(said: Mapping[str, object], *, they: str, we: str) -> None:
    """Refuse another protocol, by name, and say who has to be upgraded."""
    theirs, version = said.get("protocol"), said.get("kvtide")
    if not isinstance(theirs, int) or isinstance(theirs, bool) or not isinstance(version, str):
        raise BadFrame("a hello without the version of its protocol")
    if theirs != PROTOCOL:
        older = they if theirs < PROTOCOL else we
        why = f"{they} speaks protocol {theirs} (kvtide {version:.40}), {we} speaks {PROTOCOL} (kvtide {__version__})"
        raise Refused(f"{why}: upgrade kvtide of {older}", for_good=True)


def _is_deeper(value: object, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_is_deeper(one, depth - 1) for one in inner)


def _count(said: Mapping[str, object], name: str, end: int = 1 << 63) -> int:
    value = said.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < end:
        raise BadFrame(f"a hello whose {name} is no number: {value!r:.80}")
    return value


def _name(said: Mapping[str, object], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or len(value) > NAME_CHARS_MAX or not value.isprintable():
        raise BadFrame(f"a hello whose {name} is no name: {value!r:.80}")
    return value

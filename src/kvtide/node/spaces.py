"""Namespaces: engines that share blocks, the memory in which they do, and the index of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvtide.core import Geometry, Group, Metrics, OffloadConfig
from kvtide.core.events import EventStream
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.shared import SharedIndex
from kvtide.core.ledger import Ledger
from kvtide.errors import ConfigError, ProtocolError
from kvtide.node.arenas import NodeArena
from kvtide.node.codec import read_call, reply_frame
from kvtide.node.described_groups import groups_of
from kvtide.node.errors import BadFrame, Refused
from kvtide.node.frames import Frame
from kvtide.node.hello import Hello
from kvtide.node.namespaces import name_of, parts_of, unlike
from kvtide.node.owners import Owner
from kvtide.units import size_text

SLOTS_MAX = 1 << 24
"""Of one namespace: the index takes 200 bytes for each."""
_BLOCKS = 1 << 40
"""Of the device, in a geometry that is only there for its groups."""


@dataclass
class Space:
    """One namespace: all who have it write and read the same bytes for the same key."""

    name: str
    description: Mapping[str, object]
    parts: tuple[int, ...]
    """Bytes of one block in each part."""
    slots: int
    unlike: str
    """In what it differs from the one that was here already and is most like it."""
    index: SharedIndex
    arenas: dict[int, NodeArena] = field(default_factory=dict)
    known: dict[int, Mapping[str, object]] = field(default_factory=dict)
    """What the worker that was first in each part has said of its bytes."""

    @property
    def ready_slots(self) -> int:
        """How many slots, from the first on, every part has."""
        if len(self.arenas) < len(self.parts):
            return 0
        return min(arena.ready_slots for arena in self.arenas.values())


class Spaces:
    """All of them. The first one takes all memory."""

    def __init__(self, memory_bytes: int, say: Callable[[str], None], policy: str = "prefix") -> None:
        self._free_bytes = memory_bytes
        self._say = say
        self._policy = policy
        self._spaces: dict[str, Space] = {}
        self._owners: dict[int, Owner] = {}
        self.send: Callable[[Owner, Frame], None] = lambda _owner, _frame: None
        """Sends an engine what it has not asked for."""

    def attach(self, owner: Owner, hello: Hello) -> Mapping[str, object]:
        """Find the namespace of an engine, or make it."""
        name = name_of(hello.namespace)
        space = self._spaces.get(name)
        if space is None:
            space = self._spaces[name] = self._new(name, hello)
        owner.namespace = name
        self._owners[owner.number] = owner
        space.index.attach(owner.number)
        return {"slots": space.slots, "unlike": space.unlike}

    def join(self, owner: Owner, hello: Hello) -> Sequence[NodeArena]:
        """Return the arena of a worker's part; the first one who asks for it has it made."""
        space = self._spaces[owner.namespace]
        if hello.part >= len(space.parts):
            raise Refused(f"part {hello.part} of a block that has {len(space.parts)}", for_good=True)
        _check_bytes(space, hello)
        if hello.part not in space.arenas:
            space.arenas[hello.part] = self._made(space, hello)
            space.known[hello.part] = hello.namespace
        return [space.arenas[hello.part]]

    def handle(self, owner: Owner, frame: Frame) -> Iterable[Frame]:
        """Let the index answer."""
        space = self._spaces[owner.namespace]
        space.index.grow(space.ready_slots)
        try:
            reply = space.index.handle(owner.number, read_call(frame))
        except ProtocolError as error:
            raise BadFrame(str(error)) from error
        self._tell(space)
        return [] if reply is None else [reply_frame(reply)]

    def ending(self, owner: Owner) -> None:
        """What it holds is in quarantine."""
        self._spaces[owner.namespace].index.closed(owner.number)

    def over(self, owner: Owner) -> None:
        """What it held is free."""
        space = self._spaces[owner.namespace]
        del self._owners[owner.number]
        space.index.ended(owner.number)
        self._tell(space)

    def _tell(self, space: Space) -> None:
        """Tell engines what they have not asked for."""
        for number, notice in space.index.take_notices():
            self.send(self._owners[number], reply_frame(notice))

    def status(self) -> Mapping[str, object]:
        """Return the namespaces and their arenas."""
        return {"free_bytes": self._free_bytes, "namespaces": [_status(space) for space in self._spaces.values()]}

    def close(self) -> None:
        """Give the memory back."""
        for space in self._spaces.values():
            for arena in space.arenas.values():
                arena.close()

    def _new(self, name: str, hello: Hello) -> Space:
        parts, groups = parts_of(hello.namespace), groups_of(hello.namespace)
        slots = min(self._free_bytes // sum(parts), SLOTS_MAX)
        apart = unlike(hello.namespace, (other.description for other in self._spaces.values()))
        line = f"engine {hello.engine} shares nothing with the others: {apart}" if apart else ""
        if not slots:
            room = f"{size_text(self._free_bytes)} are left of its memory, and one block takes {size_text(sum(parts))}"
            why = f"this node has no room for the model of engine {hello.engine}: {room}"
            raise Refused(f"{why}; {line}" if line else why, for_good=True)
        if line:
            self._say(line)
        self._free_bytes -= slots * sum(parts)
        return Space(name, hello.namespace, parts, slots, apart, SharedIndex(_index(groups, slots, self._policy)))

    def _made(self, space: Space, hello: Hello) -> NodeArena:
        try:
            arena = NodeArena(hello.part, space.slots, space.parts[hello.part], numa_node=hello.numa_node)
        except (OSError, ConfigError, BadFrame) as error:
            raise Refused(f"the node cannot make memory for part {hello.part} ({error})", for_good=False) from error
        self._say(f"part {hello.part} of {space.name}: {arena.described()}")
        arena.touch(lambda: self._touched(space, arena))
        return arena

    def _touched(self, space: Space, arena: NodeArena) -> None:
        why = f": {arena.failure}" if arena.failure else ""
        of = f"{arena.ready_slots} of {arena.description.slots} slots"
        self._say(f"part {arena.description.part} of {space.name}: {of} are ready{why}")


def _check_bytes(space: Space, hello: Hello) -> None:
    """Refuse a worker whose bytes of a block are not those that the others have in this part."""
    who = f"rank {hello.rank} of engine {hello.engine} holds other bytes"
    block_bytes = hello.namespace.get("block_bytes", space.parts[hello.part])
    if block_bytes != space.parts[hello.part]:
        sizes = f"blocks of {block_bytes!r:.40} bytes in part {hello.part}, not {space.parts[hello.part]}"
        raise Refused(f"{who} than its scheduler says: {sizes}", for_good=True)
    known = space.known.get(hello.part, hello.namespace)
    if apart := unlike(hello.namespace, [known]):
        raise Refused(f"{who} than those who were here first: in part {hello.part}, {apart}", for_good=True)


def _index(groups: tuple[Group, ...], slots: int, policy: str) -> LocalIndex:
    """Return an index of so many slots, none of which is ready."""
    geometry = Geometry(groups=groups, block_bytes=1, device_blocks=slots + _BLOCKS)
    config = OffloadConfig.build(geometry, {"host": slots, "policy": policy})
    metrics = Metrics()
    return LocalIndex(config, Ledger(1, metrics), EventStream(enabled=False, metrics=metrics), metrics, 0)


def _status(space: Space) -> dict[str, object]:
    arenas = [
        {
            "part": arena.description.part,
            "slots": arena.description.slots,
            "slot_bytes": arena.description.slot_bytes,
            "bytes": arena.description.nbytes,
            "ready_slots": arena.ready_slots,
            "numa_node": arena.numa_node,
            "pages": arena.pages,
            "failure": arena.failure,
        }
        for _, arena in sorted(space.arenas.items())
    ]
    shown = {
        "name": space.name,
        "description": space.description,
        "slots": space.slots,
        **space.index.counts(),
    }
    return {**shown, "ready_slots": space.ready_slots, "arenas": arenas}

"""Namespaces: engines that share blocks, and the memory in which they do. A handler without an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvtide.errors import ConfigError
from kvtide.node.arenas import NodeArena
from kvtide.node.errors import BadFrame, Refused
from kvtide.node.frames import Frame
from kvtide.node.hello import Hello
from kvtide.node.namespaces import name_of, parts_of, unlike
from kvtide.node.owners import Owner
from kvtide.units import size_text


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
    arenas: dict[int, NodeArena] = field(default_factory=dict)

    @property
    def ready_slots(self) -> int:
        """How many slots, from the first on, every part has."""
        if len(self.arenas) < len(self.parts):
            return 0
        return min(arena.ready_slots for arena in self.arenas.values())


class Spaces:
    """All of them. The first one takes all memory."""

    def __init__(self, memory_bytes: int, say: Callable[[str], None]) -> None:
        self._free_bytes = memory_bytes
        self._say = say
        self._spaces: dict[str, Space] = {}

    def attach(self, owner: Owner, hello: Hello) -> Mapping[str, object]:
        """Find the namespace of an engine, or make it."""
        name = name_of(hello.namespace)
        space = self._spaces.get(name)
        if space is None:
            space = self._spaces[name] = self._new(name, hello)
        owner.namespace = name
        return {"slots": space.slots, "unlike": space.unlike}

    def join(self, owner: Owner, hello: Hello) -> Sequence[NodeArena]:
        """Return the arena of a worker's part; the first one who asks for it has it made."""
        space = self._spaces[owner.namespace]
        if hello.part >= len(space.parts):
            raise Refused(f"part {hello.part} of a block that has {len(space.parts)}", for_good=True)
        if hello.part not in space.arenas:
            space.arenas[hello.part] = self._made(space, hello)
        return [space.arenas[hello.part]]

    def handle(self, owner: Owner, frame: Frame) -> Iterable[Frame]:
        """There is no index here."""
        raise BadFrame(f"a frame of a kind that is not known: {frame.kind}")

    def ending(self, owner: Owner) -> None:
        """Nothing is held here."""

    def over(self, owner: Owner) -> None:
        """Nothing is held here."""

    def status(self) -> Mapping[str, object]:
        """Return the namespaces and their arenas."""
        return {"free_bytes": self._free_bytes, "namespaces": [_status(space) for space in self._spaces.values()]}

    def close(self) -> None:
        """Give the memory back."""
        for space in self._spaces.values():
            for arena in space.arenas.values():
                arena.close()

    def _new(self, name: str, hello: Hello) -> Space:
        parts = parts_of(hello.namespace)
        slots = self._free_bytes // sum(parts)
        apart = unlike(hello.namespace, (other.description for other in self._spaces.values()))
        line = f"engine {hello.engine} shares nothing with the others: {apart}" if apart else ""
        if not slots:
            room = f"{size_text(self._free_bytes)} are left of its memory, and one block takes {size_text(sum(parts))}"
            why = f"this node has no room for the model of engine {hello.engine}: {room}"
            raise Refused(f"{why}; {line}" if line else why, for_good=True)
        if line:
            self._say(line)
        self._free_bytes -= slots * sum(parts)
        return Space(name, hello.namespace, parts, slots, apart)

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
    shown = {"name": space.name, "description": space.description, "slots": space.slots}
    return {**shown, "ready_slots": space.ready_slots, "arenas": arenas}

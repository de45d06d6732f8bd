"""Namespaces: engines that share blocks, the memory in which they do, and the index of each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence

from kvtide.core.index.calls import Again, Call, Found, LookUp, Reply
from kvtide.core.index.shared import SharedIndex
from kvtide.errors import ConfigError, ProtocolError
from kvtide.node.arenas import NodeArena
from kvtide.node.block_sizes import sizes_of
from kvtide.node.codec import read_call, reply_frame
from kvtide.node.described_groups import groups_of
from kvtide.node.errors import BadFrame, Refused
from kvtide.node.frames import BODY_BYTES_MAX, Frame
from kvtide.node.hello import SLOWER, Hello
from kvtide.node.lines import ROUTINE_MAX, Bounded
from kvtide.node.namespaces import Description, is_private, model_of, name_of, unlike
from kvtide.node.owners import Owner
from kvtide.node.room import Room, check_left
from kvtide.node.shares import Budget, Share
from kvtide.node.space import Space, make_index
from kvtide.node.strangers import Strangers
from kvtide.node.tiers.node_tiers import NodeTiers
from kvtide.units import how_many, size_text


class Spaces:
    """All of them: who was there last is at the end. See `shares.py` for how much memory each one has."""

    def __init__(
        self,
        memory_bytes: int,
        say: Callable[[str], None],
        policy: str = "prefix",
        shares: Iterable[Share] = (),
        tiers: NodeTiers | None = None,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._room = Room(memory_bytes, shares, say)
        self._tiers = tiers
        if tiers is not None:
            tiers.after = lambda name: self._tell(self._spaces[name])
        self._say = say
        self._say_of_engine = Bounded(say, ROUTINE_MAX)
        self._strangers = Strangers()
        self._policy = policy
        self._spaces: dict[str, Space] = {}
        self._owners: dict[int, Owner] = {}
        self.send: Callable[[Owner, Frame], None] = lambda _owner, _frame: None
        """Sends an engine what it has not asked for."""

    def attach(self, owner: Owner, hello: Hello) -> Mapping[str, object]:
        """Find the namespace of an engine, or make it."""
        name = name_of(hello.namespace)
        space = self._spaces.get(name)
        is_new = space is None
        if space is None:
            space = self._spaces[name] = self._new(name, hello)
            _look_for_garbage_now()
        owner.namespace, owner.takes_notices = name, hello.takes_notices
        self._owners[owner.number] = owner
        space.index.attach(owner.number)
        self._say_of_engine(f"engine {owner.engine} has come: {space}")
        if is_new:
            self._tell_of(hello)
        apart = space.unlike if is_new else unlike(space.description, self._used_beside(name))
        return {"slots": space.slots, "unlike": apart, "room": space.less()}

    def join(self, owner: Owner, hello: Hello) -> Sequence[NodeArena]:
        """Return the arena of a worker's part; the first one who asks for it has it made."""
        space = self._spaces[owner.namespace]
        if hello.part >= space.sizes.parts:
            raise Refused(f"part {hello.part} of a block that has {space.sizes.parts}", for_good=True)
        space.check(hello)
        if hello.part not in space.arenas:
            space.arenas[hello.part] = self._made(space, hello)
            space.known[hello.part] = hello.namespace
            self._open_tiers(space)
        arena = space.arenas[hello.part]
        self._note_far(owner, hello, arena.far_from(hello.numa_node))
        return [arena]

    def _note_far(self, owner: Owner, hello: Hello, far: str) -> None:
        """Say it once of each engine; each of its workers says it, too."""
        if far and not owner.far:
            self._say_of_engine(f"rank {hello.rank} of engine {owner.engine} has {far}: {SLOWER}")
        if far:
            owner.far[hello.rank] = far

    def handle(self, owner: Owner, frame: Frame) -> Iterable[Frame]:
        """Let the index answer."""
        space = self._spaces[owner.namespace]
        space.grow()
        try:
            reply = self._reply(owner, space, read_call(frame))
        except ProtocolError as error:
            raise BadFrame(str(error)) from error
        self._tell(space)
        if self._tiers is not None:
            self._tiers.due()
        return [] if reply is None else [_fitting(reply_frame(reply))]

    def _reply(self, owner: Owner, space: Space, call: Call) -> Reply | None:
        reply = space.index.handle(owner.number, call)
        if isinstance(call, LookUp) and isinstance(reply, Found) and reply.waits and self._tiers is not None:
            self._tiers.look(space.name)  # disks know at once what they have, and mostly it is nothing
            return space.index.handle(owner.number, Again(call.id))
        return reply

    def rest(self) -> bool:
        """Let a namespace make some room, one after the other."""
        return any(space.index.rest() for space in self._spaces.values())

    def ending(self, owner: Owner) -> None:
        """What it holds is in quarantine."""
        held = sum(self.held(owner).values())
        self._spaces[owner.namespace].index.closed(owner.number)
        if held:
            why = f"{how_many(held, 'slot')} in quarantine until its processes have ended"
            self._say_of_engine(f"engine {owner.engine} has gone: {why}")

    def over(self, owner: Owner) -> None:
        """What it held is free."""
        space = self._spaces[owner.namespace]
        del self._owners[owner.number]
        space.index.ended(owner.number)
        self._tell(space)
        is_last = not self._engines(space)
        kept = f": no engine uses namespace {space.name} now, and its blocks are kept" * is_last
        self._say_of_engine(f"engine {owner.engine} has ended{kept * (not is_private(space.description))}")
        if is_last:
            self._spaces[space.name] = self._spaces.pop(space.name)
            if is_private(space.description):
                self._give_back(space)

    def clear(self, name: str) -> int:
        """Forget all blocks of a namespace; return how many there were. Raises `Refused`."""
        if name not in self._spaces:
            raise Refused(f"this node has no namespace {name!r:.80}", for_good=True)
        blocks = self._spaces[name].index.clear()
        self._say(f"namespace {name} was cleared: {how_many(blocks, 'block')} forgotten")
        if self._tiers is not None:
            self._tiers.due()
            if failure := self._tiers.failure(name):
                what = f"{how_many(blocks, 'block')} in memory forgotten"
                raise Refused(f"{what}, but not what its tiers hold, which are not open: {failure}", for_good=True)
        return blocks

    def _tell(self, space: Space) -> None:
        """Tell engines what they have not asked for."""
        for number, notice in space.index.take_notices():
            if number in self._owners:  # else it was found to be gone when it was told of another one
                self.send(self._owners[number], reply_frame(notice))

    def _used_beside(self, name: str) -> list[Description]:
        """Return the other namespaces that engines use now."""
        return [each.description for each in self._spaces.values() if each.name != name and self._engines(each)]

    def _tell_of(self, hello: Hello) -> None:
        """Tell who might have expected to share with an engine that has just come why he does not."""
        notice = self._strangers.notice(hello, self._used_beside(name_of(hello.namespace)))
        if notice is not None:
            name, frame = notice
            for owner in [each for each in self._owners.values() if each.namespace == name and each.takes_notices]:
                if owner.number in self._owners:  # else it was found to be gone when another one was told
                    self.send(owner, frame)

    def held(self, owner: Owner) -> Mapping[str, int]:
        """Return how many slots an engine may read, and write."""
        return self._spaces[owner.namespace].index.held(owner.number)

    def status(self) -> Mapping[str, object]:
        """Return the namespaces and their arenas."""
        namespaces = [
            {**space.status(), "engines": self._engines(space), "tiers": self._tier_rows(space)}
            for space in self._spaces.values()
        ]
        return {**self._room.status(), "namespaces": namespaces}

    def close(self) -> None:
        """Give the memory back."""
        self._room.close()
        for space in self._spaces.values():
            for arena in space.arenas.values():
                arena.close()

    # ------------------------------------------------------------------ memory

    def _new(self, name: str, hello: Hello) -> Space:
        sizes, groups = sizes_of(hello.namespace), groups_of(hello.namespace)
        apart = unlike(hello.namespace, (other.description for other in self._spaces.values()))
        line = f"engine {hello.engine} shares nothing with the others: {apart}" if apart else ""
        budget = self._room.budget_of(hello.namespace)
        try:
            self._make_room(budget, sizes.nbytes(1))
            slots = sizes.slots_in(min(budget.free_bytes, budget.each_bytes))
            check_left(sizes.nbytes(slots))
        except Refused as refused:
            self._tell_of(hello)
            why = f"this node has no room for the model of engine {hello.engine}: {refused.why}"
            raise Refused(f"{why}; {line}" if line else why, for_good=refused.for_good) from None
        if line:
            self._say(line)
        # What only one engine can use, and only as long as it runs, need not be kept below.
        below = None if self._tiers is None or is_private(hello.namespace) else self._tiers.below
        index, metrics = make_index(groups, slots, self._policy, sizes.parts, below)
        space = Space(name, hello.namespace, sizes, slots, apart, SharedIndex(index), metrics, budget)
        budget.taken_bytes += space.nbytes
        if room := space.less():
            self._say(f"engine {hello.engine} has {room}")
        return space

    def _make_room(self, budget: Budget, block_bytes: int) -> None:
        """See that there is room. Memory of namespaces that no engine uses is given back for it. Raises `Refused`."""
        self._room.check_size(budget, block_bytes)
        own = [space for space in self._spaces.values() if space.budget is budget]
        idle = [(space.name, space.nbytes) for space in own if not self._engines(space)]
        for name in self._room.to_give_back(budget, idle):
            self._give_back(self._spaces[name])
        self._room.check(budget, block_bytes, [model_of(space.description) for space in own])

    def _give_back(self, space: Space) -> None:
        self._say(f"{size_text(space.nbytes)} of namespace {space.name} are given back: no engine uses it")
        del self._spaces[space.name]
        if self._tiers is not None:
            self._tiers.remove(space.name)
        self._room.give_back(list(space.arenas.values()), space.budget, space.nbytes)

    def _open_tiers(self, space: Space) -> None:
        """Open the tiers of a namespace as soon as all of its parts have memory."""
        if self._tiers is not None and space.index.has_tiers and len(space.arenas) == space.sizes.parts:
            parts = [(space.arenas[part], space.known[part]) for part in range(space.sizes.parts)]
            share = space.nbytes / self._memory_bytes
            self._tiers.add(space.name, space.index, space.description, parts, share)

    def _tier_rows(self, space: Space) -> list[dict[str, object]]:
        return [] if self._tiers is None else self._tiers.status(space.name)

    def _engines(self, space: Space) -> int:
        """Return how many lives of engines there are, also of those that are ending."""
        return sum(owner.namespace == space.name for owner in self._owners.values())

    def _made(self, space: Space, hello: Hello) -> NodeArena:
        try:
            slot_bytes, row_bytes = space.sizes.slots[hello.part], space.sizes.rows[hello.part]
            arena = NodeArena(hello.part, space.slots, slot_bytes, row_bytes=row_bytes, numa_node=hello.numa_node)
            self._say(f"part {hello.part} of {space.name}: {arena.described()}")
            arena.touch(lambda: self._touched(space, arena))
        except (OSError, ConfigError, BadFrame) as error:
            raise Refused(f"the node cannot make memory for part {hello.part} ({error})", for_good=False) from error
        return arena

    def _touched(self, space: Space, arena: NodeArena) -> None:
        why = f": {arena.failure}" if arena.failure else ""
        of = f"{arena.ready_slots:,} of {arena.description.slots:,} slots"
        self._say(f"part {arena.description.part} of {space.name}: {of} are ready, {arena.pages}{why}")


def _look_for_garbage_now() -> None:
    """Lists of a million numbers that live for long are looked through now, and not now and then: it takes 30 ms."""
    gc.unfreeze()  # what was given back since is found, too
    gc.collect()
    gc.freeze()


def _fitting(frame: Frame) -> Frame:
    """Return an answer, if it can be sent. Keys of a few bytes are shorter than what is said about them."""
    if len(frame.body) > BODY_BYTES_MAX:
        raise BadFrame(f"a call whose answer takes {len(frame.body)} bytes")
    return frame

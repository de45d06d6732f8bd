"""A world: everything that is drawn from a seed before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvtide.core.config import Admission, Mode
from kvtide.core.eviction import POLICIES
from kvtide.sim.attention import Layout, Sliding, blocks_to_resume, common_multiple
from kvtide.sim.below import TierWorld
from kvtide.sim.draw import CHANCE_ONE, Draw
from kvtide.sim.faults import Faults
from kvtide.sim.layouts import LAYOUTS, blocks_needed_max, draw_layout
from kvtide.sim.node.chances import NodeWorld
from kvtide.sim.tokens import EPOCHS_MAX, Tokens
from kvtide.sim.traffic import Arrival, draw_shape, draw_traffic

WORLD_STREAM, RUN_STREAM, TIER_STREAM, TIER_RUN_STREAM = 0, 1, 3, 4
ADMISSION_STREAM = 5
MORE_RESETS_MAX = 8
NEW_STREAM, TIME_STREAM, SHARE_STREAM = 6, 7, 8
"""What was thought of later, so that older worlds are as they were but for that."""


def drawn(how: int | Callable[[Draw], int], *, later: bool = False) -> Any:
    """Return a field of `Habits` that is drawn: with a chance out of 256, or in another way."""
    draw = how if callable(how) else lambda draw: draw.chance(how)
    return field(metadata={"draw": draw, "later": later})


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What serving engines do differently. Each is within the contract of the façade."""

    early: bool = drawn(128)
    """Blocks count as computed and are findable once the step is on its way, not when its output is there."""
    slide_before_plan: bool = drawn(128)
    """Blocks out of the window are freed before the plan, which can then not store them any more."""
    waits_for_pins: bool = drawn(128)
    """When pins of copies are what is missing, wait for them instead of preempting someone."""
    gives_up: bool = drawn(128)
    """Says so when it cannot place a request; otherwise it just matches again later."""
    patient: bool = drawn(96)
    """Allocates a step after it has asked what the host has."""
    accept_chance: int = drawn(lambda draw: draw.pick((0, 0, 0, 64)))
    """How often fewer tokens are accepted than were offered."""
    accepts_inside_blocks: bool = drawn(64)
    """What is accepted need not end a block."""
    asks_nothing_chance: int = drawn(lambda draw: draw.pick((0, 0, 0, 24)))
    """How often a request is admitted without asking what the host has."""
    preempts_loading: bool = drawn(128)
    """Takes blocks away from requests that load, too, when there is nobody else."""
    reuses_ids: bool = drawn(128)
    """A new request may have the id of one that is over, while copies of that one still run."""
    recomputes_in_place: bool = drawn(128)
    """After a failed load a request goes on with the blocks it has, if it can."""
    frees_before_preempt: bool = drawn(128)
    """The blocks of a preempted request are freed before kvtide is told."""
    outputs_before_reports: bool = drawn(128)
    """The output of a step is taken before the reports that came with it."""
    reset_keeps_running: bool = drawn(128)
    """On a reset, requests go on with the KV of the old weights instead of starting again."""
    host_waits_ranks: int = drawn(lambda draw: draw.below(3))
    """How many ranks must have ended a step before the host takes its output; 0: it does not look."""
    keys_when_scheduled: bool = drawn(128, later=True)
    """Blocks have their keys once the step that fills them is scheduled, so that others find them in that very step."""
    finds_newest: bool = drawn(128, later=True)
    """Of several blocks with one content the one that got it last is found, not the first."""
    finds_dropped: bool = drawn(96, later=True)
    """What has left the window of a request is looked up by key when it is to be stored."""
    rounds_windows_up: bool = drawn(144, later=True)
    """kvtide is told of longer windows than there are: it brings blocks that the engine has no use for."""
    preempts_at_will: bool = drawn(96, later=True)
    """Takes blocks away from a request although there are enough, once it is known what the step computes."""
    tells_evicted: bool = drawn(128, later=True)
    """Says which keys the device holds no longer."""
    asks_who_waits: bool = drawn(128, later=True)
    """Asks kvtide whether a request still waits for tiers, and matches it again only when it does not."""
    impatient: bool = drawn(96, later=True)
    """Often goes on without what is below the host, while it is on its way."""
    announces_loads: bool = drawn(96, later=True)
    """Lets a request go on before its load has ended, once that is certain; compute waits for the end."""
    tells_costs: bool = drawn(128, later=True)
    """Says what computing and loading have cost."""
    resets_while_loading: bool = drawn(56, later=True)
    """Weights change more often, best when some request is loading or about to, and requests go on if they can."""
    clears_fail: bool = drawn(144, later=True)
    """The bytes below the host cannot be removed more often than not. They must not be found all the same."""
    tells_time_last: bool = False
    """Tells the time (`World.step_s`) right before the plan, when requests are admitted, and not before the reports."""

    @classmethod
    def draw(cls, draw: Draw, new: Draw) -> Habits:
        """Draw what kind of engine this is, habit by habit; those that were thought of later from `new`."""
        habits = [habit for habit in fields(cls) if habit.metadata]
        return cls(**{habit.name: habit.metadata["draw"](new if habit.metadata["later"] else draw) for habit in habits})


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One simulated server, its users and its luck."""

    seed: int
    tokens: Tokens = field(compare=False)
    layout: str
    groups: Layout
    mode: Mode
    policy: str
    ranks: int
    depth: int
    """How many steps are on their way at a time: 1 is synchronous."""
    step_tokens: int
    chunk_tokens: int
    """Most tokens of one request in one step."""
    max_running: int
    device_blocks: int
    host_slots: int
    slots_ready: int
    """Host slots that can be used from the start; the others are pinned while the engine serves (F20)."""
    pin_budget: int
    min_load_tokens: int | None
    """None: learned."""
    habits: Habits
    faults: Faults
    arrivals: tuple[Arrival, ...]
    resets: tuple[int, ...]
    """Steps before which the weights change."""
    step_s: int = 0
    """Seconds that go by in each step, as kvtide is told; 0: it is not told. Far more than the copies take for theirs,
    so that what is slow, silent or hangs is overdue after a few steps.
    """
    stops_at: int | None = None
    """The step before which a rank loses its device, so that nothing is offloaded any more; None: never."""
    breaks: bool = False
    """That device is not said to be lost: its copy engine raises from then on, whatever it is asked."""
    tier: TierWorld | None = None
    """What lies below host memory, if anything does."""
    admission: Admission = "all"
    replicas: int = 1
    """So many ranks, one after the other, hold the same bytes, and have one copy on the host (F27)."""
    node: NodeWorld | None = None
    """The node that has the host blocks of several engines like this one; None: it has its own."""

    @classmethod
    def draw(cls, seed: int) -> World:
        """Draw the world of a seed."""
        draw = Draw(seed, WORLD_STREAM)
        tokens = Tokens()
        layout = draw.pick(("full", "full", "full", "full+sliding", *LAYOUTS))
        groups = draw_layout(layout, draw, draw.pick((1, 2, 3, 4, 4)))
        arrivals = draw_traffic(draw, draw_shape(draw), tokens)
        step_tokens = draw.pick((4, 8, 16, 64))
        chunk_tokens = draw.between(1, step_tokens) if draw.chance(80) else step_tokens
        needed = blocks_needed(groups, arrivals, chunk_tokens)
        device_blocks = needed + draw.pick((0, 0, 1, 2, draw.between(0, needed), draw.between(0, 4 * needed)))
        host_slots = draw.pick(
            (draw.between(1, 4), draw.between(1, 2 * needed), draw.between(1, 6 * needed), 12 * needed, 12 * needed)
        )
        last_step = arrivals[-1].at_step + 30
        new = Draw(seed, NEW_STREAM)
        world = cls(
            seed=seed,
            tokens=tokens,
            layout=layout,
            groups=groups,
            mode="lazy" if draw.chance(96) else "eager",
            policy=draw_policy(draw, new),
            ranks=draw.pick((1, 1, 1, 2, 2, 3, 4)),
            depth=draw.pick((1, 2)),
            step_tokens=step_tokens,
            chunk_tokens=chunk_tokens,
            max_running=draw.pick((1, 2, 4, 16)),
            device_blocks=device_blocks,
            host_slots=host_slots,
            slots_ready=draw.pick((host_slots, host_slots, host_slots, draw.below(host_slots + 1))),
            pin_budget=max(1, draw.pick((1, device_blocks // 4, draw.between(1, device_blocks), device_blocks))),
            min_load_tokens=_or_learned(draw.pick((0, 0, 0, draw.between(1, 12))), new),
            habits=Habits.draw(draw, new),
            faults=Faults.draw(draw),
            arrivals=arrivals,
            resets=tuple(sorted(draw.below(last_step) for _ in range(draw.pick((0, 0, 0, 1, 3))))),
            tier=TierWorld.draw(Draw(seed, TIER_STREAM)),
            admission="second-use" if Draw(seed, ADMISSION_STREAM).chance(32) else "all",
        )
        world = replace(world, replicas=draw_replicas(Draw(seed, SHARE_STREAM), world.ranks))
        world = _with_room(world)
        if world.tier is not None and new.chance(144):
            # A host that holds little, above tiers that hold much: so a lot is fetched.
            slots = new.between(2, 2 * needed)
            tier = replace(world.tier, warm=250, records_max=400, tier_damage=new.pick((0, 24, 80)))
            world = replace(world, tier=tier, host_slots=slots, slots_ready=min(slots, world.slots_ready))
        late = Draw(seed, TIME_STREAM)
        world = _with_time(world, late)
        if late.chance(20):
            world = replace(world, stops_at=late.between(1, last_step))
        if late.chance(64):
            refused, raises = late.pick((0, 6, 24)), late.pick((0, 6, 24))
            faults = replace(world.faults, copy_refused=refused, copy_raises=raises)
            world = replace(world, faults=faults, breaks=late.chance(128))
        if late.chance(64):
            world = replace(world, faults=replace(world.faults, not_kept=late.pick((6, 24, 80, 200))))
        clears_fail = world.habits.clears_fail and world.tier is not None
        if not world.habits.resets_while_loading and not clears_fail:
            return world
        more = [new.below(last_step) for _ in range(new.between(2, MORE_RESETS_MAX))]
        return replace(world, resets=tuple(sorted([*world.resets, *more])))

    @property
    def told_groups(self) -> Layout:
        """The groups as kvtide is told of them."""
        if not self.habits.rounds_windows_up:
            return self.groups
        return tuple(
            Sliding(group.block_tokens, group.window_tokens + group.block_tokens)
            if isinstance(group, Sliding)
            else group
            for group in self.groups
        )

    def describe(self) -> list[str]:
        """Return the world in a few lines, for people."""
        habits = [name for name in Habits.__slots__ if getattr(self.habits, name) is True]
        faults = [f"{kind} {getattr(self.faults, kind)}/{CHANCE_ONE}" for kind in self.faults.kinds]
        return [
            f"groups     {', '.join(map(str, self.groups))}",
            f"offloading {self.mode}, policy {self.policy}, admission {self.admission}, {self.host_slots} host slots "
            f"({self.slots_ready} at once), pin budget {self.pin_budget}, "
            f"loads of at least {_learned(self.min_load_tokens)} tokens",
            f"engine     {self.ranks} ranks, {self.replicas} with the same bytes, depth {self.depth}, "
            f"{self.device_blocks} device blocks, "
            f"{self.step_tokens} tokens a step, {self.chunk_tokens} a chunk, {self.max_running} running",
            f"habits     {', '.join(habits) or 'none'}; {self.habits.host_waits_ranks} ranks waited for, "
            f"accepts less {self.habits.accept_chance}/{CHANCE_ONE}",
            f"below      {self.tier or 'nothing'}",
            f"node       {self.node or 'none'}",
            f"faults     {', '.join(faults) or 'none'}",
            f"requests   {len(self.arrivals)}: "
            + ", ".join(f"{arrival.name} at {arrival.at_step}" for arrival in self.arrivals),
            f"resets     {', '.join(f'at {step}' for step in self.resets) or 'none'}",
            f"time       {f'{self.step_s} s a step' if self.step_s else 'not told'}; "
            f"a device is lost {'never' if self.stops_at is None else f'at {self.stops_at}'}",
        ]


def draw_replicas(draw: Draw, ranks: int) -> int:
    """Return how many ranks share each part: as often as not, one."""
    shared = [count for count in range(2, ranks + 1) if ranks % count == 0]
    return draw.pick(tuple(shared)) if shared and draw.chance(128) else 1


def _learned(tokens: int | None) -> str:
    return "a learned number of" if tokens is None else str(tokens)


def _with_room(world: World) -> World:
    """Return the world with a device pool that can hold the first prefix that kvtide can resume from."""
    return replace(world, device_blocks=max(world.device_blocks, blocks_to_resume_first(world.told_groups)))


def _with_time(world: World, draw: Draw) -> World:
    """Let the engine of some worlds tell the time, and ranks be silent in most of these."""
    if not draw.chance(56):
        return world
    faults = replace(world.faults, silent_rank=draw.pick((0, 24, 80, 160)))
    habits = replace(world.habits, tells_time_last=draw.chance(128))
    return replace(world, step_s=draw.pick((3, 6, 12, 20)), faults=faults, habits=habits)


def draw_policy(draw: Draw, new: Draw) -> str:
    """Draw who leaves the host first: mostly the default, any other one now and then."""
    policy = draw.pick(("prefix", "prefix", "lru"))
    others = [name for name in POLICIES if name not in ("prefix", "lru")]
    return new.pick(others) if new.chance(96) else policy


def _or_learned(tokens: int, new: Draw) -> int | None:
    return None if new.chance(48) else tokens


def blocks_needed(groups: Layout, arrivals: tuple[Arrival, ...], chunk_tokens: int) -> int:
    """Return the blocks without which the largest request could never run, or no prefix ever be resumed."""
    longest = max(arrival.total_tokens for arrival in arrivals)
    return max(blocks_to_resume_first(groups), blocks_needed_max(groups, longest, chunk_tokens))


def blocks_to_resume_first(groups: Layout) -> int:
    """Return the blocks that the first prefix has which all groups can resume from."""
    boundary = common_multiple(groups)
    return sum(len(blocks_to_resume(group, boundary)) for group in groups)


assert EPOCHS_MAX > 3 + MORE_RESETS_MAX, "every reset of a world needs an epoch of its own"

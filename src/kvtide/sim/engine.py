"""The simulated serving engine: its steps, and what is said between host, manager and ranks."""

from __future__ import annotations

import itertools
from collections import deque

from kvtide.core.index.link import Link
from kvtide.core.manager import OffloadManager
from kvtide.core.messages import Copy, Plan
from kvtide.core.metrics import Metrics
from kvtide.sim.attention import first_blocks
from kvtide.sim.clock import TICK_S, TICKS_PER_STEP
from kvtide.sim.copies import StepFence, draw_speed
from kvtide.sim.facade import WatchedManager
from kvtide.sim.host import host_of_ranks
from kvtide.sim.mailbox import Mailbox
from kvtide.sim.pool import SimPool
from kvtide.sim.rank import Rank
from kvtide.sim.request import SimRequest, State
from kvtide.sim.run import Run
from kvtide.sim.scheduler import Scheduler
from kvtide.sim.traffic import Arrival
from kvtide.sim.violation import Violation
from kvtide.sim.warm import contents_of
from kvtide.sim.work import Item, StepWork, lay_out

COMPUTE_TICKS_MAX = 400 * TICKS_PER_STEP
"""No compute, and no load that compute waits for, takes as long as this."""
STEPS_MAX = 20_000
"""No world is as long as this."""
RESET_WAITS_STEPS = 40
STEPS_IN_FLIGHT_MAX = 4
"""The host never runs further ahead of a rank than this."""


class SimEngine:
    """A serving engine in virtual time, with everything that can go wrong."""

    ticks_per_step = TICKS_PER_STEP

    def __init__(self, run: Run, link: Link | None = None) -> None:
        """`link`: the way to the host blocks, if they are not in this engine's own memory."""
        self.world = world = run.world
        self.clock = run.clock
        self.log = run.log
        self.fault_counts = run.fault_counts
        self.watch = run.watch
        self._run = run
        pool = SimPool(world.device_blocks, run.watch, finds_newest=world.habits.finds_newest)
        self.manager = WatchedManager(run, pool, link)
        if world.habits.tells_evicted:
            pool.on_evicted = self.manager.evicted
        self.scheduler = Scheduler(run, pool, self.manager)
        host = host_of_ranks(world.ranks, world.replicas, world.host_slots)
        self.ranks = [Rank(index, run, host[index]) for index in range(world.ranks)]
        self.watch.attach(self.manager.manager, pool, self.ranks)
        self._warm_up_tiers()
        self._mailbox = Mailbox(run, self.ranks)
        self._reads = [(group.block_tokens, first_blocks(group)) for group in world.groups]
        self._smallest_block_tokens = min(group.block_tokens for group in world.groups)
        self._arrivals = deque(world.arrivals)
        self._aborts: dict[int, list[SimRequest]] = {}
        self._resets = deque(world.resets)
        self._outputs: deque[StepWork] = deque()
        self._announced: list[int] = []
        self.step_number = 0
        """Steps of the world: also those that the engine sleeps through."""
        self.steps = 0
        """Steps that the engine has made."""
        self.resting = True
        """Whether there is nothing to do at all until something arrives."""

    def _warm_up_tiers(self) -> None:
        """Let another server have served the same requests before."""
        if self.world.tier is None or not self.world.tier.warm:
            return
        contents = contents_of(self.world)
        for rank in self.ranks:
            rank.warm_up(contents)

    @property
    def managers(self) -> list[OffloadManager]:
        """What is under test."""
        return [self.manager.manager]

    @property
    def counted(self) -> list[Metrics]:
        """What was counted."""
        return [self.manager.manager.metrics]

    # ------------------------------------------------------------------ life

    def run(self) -> None:
        """Live through the whole world."""
        while not self.is_over:
            self.turn()
        for rank in self.ranks:
            rank.close()
        self.watch.at_end(self.manager.take_all_slots())

    @property
    def is_over(self) -> bool:
        """Whether nothing will happen any more."""
        return self.resting and not self._arrivals and not self.watch.observed.overdue

    def turn(self) -> None:
        """Do one step, and see whether there is anything left to do."""
        if self.resting and self._arrivals:
            self.step_number = max(self.step_number, self._arrivals[0].at_step)  # sleep until then
        self.step()
        self.resting = self.scheduler.idle and not self._outputs and not self.manager.manager.busy
        if self.resting:
            self.watch.at_rest()
        if self.steps > STEPS_MAX:
            raise Violation("I8", f"not at rest after {STEPS_MAX} steps")

    def step(self) -> None:
        """Do one step."""
        self.steps += 1
        if self.log:
            self.log.add(f"step {self.step_number}")
        if self.world.step_s and not self.world.habits.tells_time_last:
            self.manager.passed(self.world.step_s)
        if self.world.habits.outputs_before_reports:
            self._take_outputs()
            self._take_reports()
        else:
            self._take_reports()
            self._take_outputs()
        self._happen()
        items = self.scheduler.schedule()
        if self.world.habits.resets_while_loading and self.scheduler.about_to_load():
            self._reset_if_due()
        work = lay_out(self.manager.steps + 1, items, self._reads, self._loads_ahead() if self._announced else ())
        self.watch.submitted(work)
        if self.world.step_s and self.world.habits.tells_time_last:
            self.manager.passed(self.world.step_s)
        plan = self.manager.plan(idle=not items)
        assert plan.step == work.step
        self._dispatch(plan, work)
        self._pass_time(plan)
        self.step_number += 1
        self.watch.after_step()

    # ------------------------------------------------------------------ what comes from outside

    def _happen(self) -> None:
        """Let requests arrive and be aborted, and weights change."""
        if self._is_time_to_reset():
            self._reset_if_due()
        if self.world.stops_at is not None and self.step_number >= self.world.stops_at:
            self._lose_device()
        while self._arrivals and self._arrivals[0].at_step <= self.step_number:
            arrival = self._arrivals.popleft()
            request = SimRequest.arrive(arrival, self._id_for(arrival), self.world.tokens, self.world.groups)
            if self.log:
                prompt = f"{request.prompt_tokens} tokens up to n{request.nodes[request.known]}"
                self.log.add(f"{request.id} arrives ({arrival.name}): {prompt}")
            self.manager.add_request(request)
            self.scheduler.waiting.append(request)
            if arrival.abort_after_steps is not None:
                self._aborts.setdefault(self.step_number + arrival.abort_after_steps, []).append(request)
        for request in self._aborts.pop(self.step_number, ()):
            if request.state is not State.OVER:
                self.scheduler.finish(request)

    def _reset_if_due(self) -> None:
        while self._resets and self._resets[0] <= self.step_number:
            self._resets.popleft()
            self.scheduler.reset()

    def _lose_device(self) -> None:
        """Let one rank lose its device; when that is heard of, a step later, let all of them stop."""
        last = self.ranks[-1]
        why = last.copies.lost or last.worker.over
        if why and not self.scheduler.stopped:
            self.scheduler.stop()
            for rank in self.ranks:
                rank.stop(why)
        last.lose_device(breaks=self.world.breaks)

    def _is_time_to_reset(self) -> bool:
        """Whether weights change now if that is due, and not a little later, when somebody is loading."""
        if not self.world.habits.resets_while_loading or not self._resets:
            return True
        return bool(self.scheduler.loading) or self.step_number - self._resets[0] > RESET_WAITS_STEPS

    def _id_for(self, arrival: Arrival) -> str:
        """Return the name of a request, or the first one that nobody has at the moment."""
        if not self.world.habits.reuses_ids:
            return arrival.name
        alive = self.watch.observed.requests
        return next(name for name in (f"q{number}" for number in itertools.count()) if name not in alive)

    # ------------------------------------------------------------------ what comes back

    def _take_reports(self) -> None:
        self.scheduler.take(self.manager.report(self._mailbox.collect()))
        if self.world.habits.announces_loads:
            self._announce_loads()

    def _announce_loads(self) -> None:
        """Let requests go on whose loads are certain to end well on every rank, though some have not ended."""
        for request in list(self.scheduler.loading.values()):
            load = request.load_id
            if load is not None and all(load in rank.copies.certain() for rank in self.ranks):
                self._announced.append(load)
                self.scheduler.arrived(request, succeeded=self.manager.arrived(request))

    def _take_outputs(self) -> None:
        """Take the output of the oldest step, if it is `depth` steps old."""
        while self._outputs and self._outputs[0].step <= self.manager.steps - self.world.depth + 1:
            work = self._outputs.popleft()
            self._wait_for_compute(work.step, self.world.habits.host_waits_ranks)
            if self.world.habits.tells_costs:
                prompt_tokens = sum(
                    item.end - item.start for item in work.items if item.end <= item.request.prompt_tokens
                )
                self.manager.manager.computed(prompt_tokens, TICK_S * (self.clock.now - work.begun_tick))
            for item in work.items:
                if item.life == item.request.life and item.request.state is State.RUNNING:
                    self._computed(item)

    def _computed(self, item: Item) -> None:
        """Believe that the tokens of an item are computed; take the token that came out."""
        request = item.request
        if item.end > request.told:
            self._tell(request, item.end)
        if not item.samples:
            return
        request.samples_due -= 1
        request.known += 1
        self.watch.observed.progress += 1
        if request.known % self._smallest_block_tokens == 0:
            request.reveal_keys(self.world.tokens, self.world.groups)
        if request.known == request.total_tokens:
            self.scheduler.finish(request)

    def _tell(self, request: SimRequest, computed_tokens: int) -> None:
        size = self._smallest_block_tokens
        full, request.told = request.told // size, computed_tokens
        if full != computed_tokens // size and request.epoch == self.scheduler.epoch:
            self.scheduler.tables.register(request, computed_tokens)
        self.manager.advance(request, computed_tokens)

    # ------------------------------------------------------------------ what goes out

    def _loads_ahead(self) -> tuple[int, ...]:
        """Return the loads that were announced and have not ended everywhere: all compute comes after them."""
        self._announced = [load for load in self._announced if any(rank.has_unfinished(load) for rank in self.ranks)]
        return tuple(self._announced)

    def _dispatch(self, plan: Plan, work: StepWork) -> None:
        """Send a plan and the compute of its step to the ranks."""
        items = work.items
        if items:
            work.begun_tick = self.clock.now
            self._outputs.append(work)
            if self.log:
                self.log.add(f"compute {plan.step}: {work.describe()}")
        late = self._begin_copies(plan)
        for load in plan.loads:
            self.scheduler.loading[load.request_id].load_id = load.id
        for rank in self.ranks:
            rank.submit(work)
            if late:
                rank.start(Plan(plan.step, stores=late), StepFence(plan.step))
        for item in items:
            self.scheduler.dispatched(item)
            known = min(item.end, item.request.known)
            if self.world.habits.early and known > item.request.told:
                self._tell(item.request, known)
        if not self.world.habits.slide_before_plan:
            self.scheduler.slide()

    def _begin_copies(self, plan: Plan) -> tuple[Copy, ...]:
        """Begin what need not wait for the compute of this step, and return the stores that do."""
        if not (plan.loads or plan.stores or plan.errands or plan.ask):
            return ()
        self._foresee(plan)
        late = tuple(copy for copy in plan.stores if self.must_wait(copy)) if plan.stores else ()
        early = tuple(copy for copy in plan.stores if copy not in late) if late else plan.stores
        begun = Plan(plan.step, plan.loads, early, errands=plan.errands, ask=plan.ask)
        fence = StepFence(plan.step - 1)
        for rank in self.ranks:
            rank.start(begun, fence)
        return late

    def must_wait(self, store: Copy) -> bool:
        """Whether a store must wait for the compute of its plan's own step, which may fill its blocks (F6)."""
        return not store.filled

    def _foresee(self, plan: Plan) -> None:
        """Draw what becomes of a plan's copies: how fast they are is much the same on all ranks."""
        loads = len(plan.loads)
        for position, copy in enumerate(plan.loads + plan.stores):
            speed = draw_speed(self._run)
            for rank in self.ranks:
                rank.copies.foresee(copy, is_store=position >= loads, speed=speed)

    def _pass_time(self, plan: Plan) -> None:
        self.clock.run(self.ticks_per_step)
        if plan.wait_for:
            wait, now = Plan(plan.step, wait_for=plan.wait_for), self.clock.now
            for rank in self.ranks:
                rank.wait(wait, now)
        if plan.step > STEPS_IN_FLIGHT_MAX:
            self._wait_for_compute(plan.step - STEPS_IN_FLIGHT_MAX, self.world.ranks)

    def _wait_for_compute(self, step: int, ranks: int) -> None:
        """Wait until some ranks have computed a step. Compute always ends, and so does a load that it waits for."""
        ticks_left = COMPUTE_TICKS_MAX
        for rank in self.ranks[:ranks]:
            while rank.step_ended < step:
                ticks_left -= self.clock.run_until_next(TICKS_PER_STEP)
                if ticks_left < 0:
                    raise Violation("I8", f"the compute of step {step} waits on rank {rank.index}, and nothing ends")

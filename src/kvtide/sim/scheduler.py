"""The simulated engine's scheduler: which tokens of which requests are computed in the next step."""

from __future__ import annotations

from bisect import insort
from collections import deque

from kvtide.core.messages import Outcome
from kvtide.sim.clock import TICK_S
from kvtide.sim.facade import WatchedManager
from kvtide.sim.offers import Offers
from kvtide.sim.pool import SimPool
from kvtide.sim.request import SimRequest, State
from kvtide.sim.run import Run
from kvtide.sim.tables import Tables
from kvtide.sim.work import Item

AT_WILL, AT_WILL_MAX = 96, 3
"""How often in 256 steps a request is preempted at will, where that happens, and how often one request at most."""


class Scheduler:
    """First come first served, prefill in chunks; who finds no block takes those of the last admitted."""

    def __init__(self, run: Run, pool: SimPool, manager: WatchedManager) -> None:
        world = run.world
        self._world = world
        self._habits = world.habits
        self._pool = pool
        self.tables = Tables(world.groups, pool, run.watch)
        self._manager = manager
        self._offers = Offers(run, manager)
        self._observed = run.watch.observed
        self._draw = run.draw
        self._fault_counts = run.fault_counts
        self._clock = run.clock
        self._windowed = any(group.forgets for group in world.groups)
        self.waiting: deque[SimRequest] = deque()
        self.loading: dict[str, SimRequest] = {}
        self.running: list[SimRequest] = []
        self._admissions = 0
        self.epoch = 0
        self.stopped = False
        """Nothing is offloaded any more, and nobody asks what the host has."""

    # ------------------------------------------------------------------ one step

    def schedule(self) -> list[Item]:
        """Decide what is computed in this step."""
        budget = self._world.step_tokens
        items: list[Item] = []
        admitting = True
        self.tables.filling.clear()
        if self._windowed and self._habits.slide_before_plan:
            self.slide()
        victim = self._victim_at_will()
        for request in tuple(self.running):
            if request.state is not State.RUNNING or not budget or request is victim:
                continue
            count = min(request.schedulable - request.scheduled, self._world.chunk_tokens, budget)
            if count <= 0:
                continue
            if request.scheduled + count <= request.room_tokens or self._make_room(request, request.scheduled + count):
                items.append(self._item(request, count))
                budget -= count
            else:
                admitting = False
        while admitting and budget and self.waiting and self._has_seat():
            request = self.waiting[0]
            if not self._admit(request, budget):
                break
            if request.state is State.RUNNING:
                count = min(request.schedulable - request.scheduled, self._world.chunk_tokens, budget)
                items.append(self._item(request, count))
                budget -= count
        if victim is not None and all(item.request is not victim for item in items) and victim in self.running:
            victim.preempted_at_will += 1
            self.preempt(victim)
        return items

    def _victim_at_will(self) -> SimRequest | None:
        """Return a request that has to make way for no visible reason, as priorities would have it."""
        if not self.running or not self._habits.preempts_at_will or not self._draw.chance(AT_WILL):
            return None
        victim = self.running[-1]
        return victim if victim.preempted_at_will < AT_WILL_MAX else None

    def _item(self, request: SimRequest, count: int) -> Item:
        start, end = request.scheduled, request.scheduled + count
        if self._habits.keys_when_scheduled and request.epoch == self.epoch:
            self.tables.register(request, min(end, request.known), filling=True)
        samples = end == request.known + request.samples_due
        return Item(request, start, end, samples, request.life)

    def dispatched(self, item: Item) -> None:
        """The step is on its way to the device."""
        request = item.request
        request.scheduled = item.end
        request.samples_due += item.samples
        if item.end > request.furthest:
            request.furthest = item.end
            self._observed.progress += 1

    def slide(self) -> None:
        """Free what fell out of the windows."""
        if self._windowed:
            for request in self.running:
                self.tables.slide(request)

    # ------------------------------------------------------------------ admission

    def _has_seat(self) -> bool:
        return len(self.running) + len(self.loading) < self._world.max_running

    def _admit(self, request: SimRequest, budget: int) -> bool:
        """Give the first of the queue its blocks; False: it stays where it is."""
        # One block for each that runs: otherwise the request is preempted as soon as the others go on.
        spare = min(len(self.running), self._pool.num_blocks // 4)
        if self._pool.num_free <= spare:
            self._fault_counts["device_short"] += 1
            return False  # at least one block is always needed: no use asking
        if self._habits.asks_who_waits and self._manager.manager.waits(request.id):
            return False
        device_tokens = self.tables.device_hit(request)
        if self.tables.reads_what_is_being_filled(request, device_tokens):
            return False
        accepted = 0 if self.stopped else self._offers.take(request, device_tokens)
        if accepted is None:
            return False
        resume_at = device_tokens + accepted
        compute = 0 if accepted else min(request.known - device_tokens, self._world.chunk_tokens, budget)
        if not self.tables.place(
            request, device_tokens=device_tokens, resume_at=resume_at, end=resume_at + compute, spare=spare
        ):
            self._fault_counts["device_short"] += 1
            if self._habits.gives_up:
                self._manager.give_up(request.id)
            return False
        self.waiting.popleft()
        self._admissions += 1
        request.admission = self._admissions
        request.begin_life(self.epoch, self._world.groups)
        request.device_tokens, request.resume_at, request.scheduled = device_tokens, resume_at, device_tokens
        if self._manager.admit(request, accepted):
            request.state = State.LOADING
            request.load_id = None
            request.load_began_tick = self._clock.now
            self.loading[request.id] = request
        else:
            self._run(request)
        return True

    def _run(self, request: SimRequest) -> None:
        request.state = State.RUNNING
        insort(self.running, request, key=_admission)

    # ------------------------------------------------------------------ room

    def _make_room(self, request: SimRequest, end: int) -> bool:
        """Find blocks for `end` tokens of a running request; False: not in this step."""
        while not self.tables.extend(request, end):
            self.slide()
            missing = self.tables.missing(request, end)
            if missing <= self._pool.num_free:
                continue
            self._fault_counts["device_short"] += 1
            if missing <= self._pool.num_free + self._pool.num_pinned():
                self._fault_counts["pins_in_the_way"] += 1
                if self._habits.waits_for_pins:
                    return False
            victim = self.running[-1]
            if victim is request and self.loading:
                if not self._habits.preempts_loading:
                    return False  # requests that load hold it: they will run, and can be preempted then
                victim = next(reversed(self.loading.values()))
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def preempt(self, request: SimRequest) -> None:
        """Take all blocks away from a request and let it wait in front of the others."""
        if request.state is State.RUNNING:
            self.running.remove(request)
        else:
            del self.loading[request.id]
        if self._habits.frees_before_preempt:
            self._pool.free(self.tables.release(request))
            self._manager.preempt(request)
        else:
            self._manager.preempt(request)
            self._pool.free(self.tables.release(request))
        request.state = State.WAITING
        request.life += 1
        request.scheduled = request.samples_due = request.told = 0
        request.device_tokens = request.resume_at = 0
        self.waiting.appendleft(request)

    # ------------------------------------------------------------------ what comes back

    def take(self, outcome: Outcome) -> None:
        """Let requests go on whose loads have ended."""
        for request_id in outcome.loaded:
            self._loaded(self.loading[request_id])
        for request_id in outcome.failed:
            if request_id in outcome.overdue:
                self.preempt(self.loading[request_id])  # its blocks may still be written to
            else:
                self._not_loaded(self.loading[request_id])

    def arrived(self, request: SimRequest, *, succeeded: bool) -> None:
        """Let a request go on whose load is certain to end, or came to nothing meanwhile."""
        if succeeded:
            self._loaded(request)
        else:
            self._not_loaded(request)

    def _loaded(self, request: SimRequest) -> None:
        del self.loading[request.id]
        if self._habits.tells_costs:
            waited_s = TICK_S * (self._clock.now - request.load_began_tick)
            self._manager.manager.loaded(request.resume_at - request.device_tokens, waited_s)
        request.scheduled = request.told = request.resume_at
        if request.epoch == self.epoch:
            self.tables.register(request, request.scheduled)
        self._run(request)

    def _not_loaded(self, request: SimRequest) -> None:
        in_place = self._habits.recomputes_in_place or self._habits.resets_while_loading
        if in_place and not self._windowed:
            del self.loading[request.id]
            request.resume_at = request.device_tokens
            self._run(request)
        else:
            self.preempt(request)

    def about_to_load(self) -> bool:
        """Whether some request was admitted with a load that is in no plan yet."""
        return any(request.load_id is None for request in self.loading.values())

    def finish(self, request: SimRequest) -> None:
        """Remove a request, in whatever state."""
        self._manager.finish(request)
        if request.state is State.WAITING:
            self.waiting.remove(request)
        elif request.state is State.LOADING:
            del self.loading[request.id]
        else:
            self.running.remove(request)
        self._pool.free(self.tables.release(request))
        request.state = State.OVER

    def reset(self) -> None:
        """The weights change."""
        self._pool.reset()
        self._manager.reset()
        self._start_anew()

    def stop(self) -> None:
        """A rank has lost its device, and what was on it: kvtide is told to stop."""
        self.stopped = True
        self._pool.reset()
        self._manager.stop()
        self._start_anew()

    def _start_anew(self) -> None:
        """Nothing that was computed until now is used by requests that begin."""
        self.epoch += 1
        for request in self.waiting:
            request.match = None
        if not self._habits.reset_keeps_running and not self._habits.resets_while_loading:
            for request in self.waiting:
                self._manager.preempt(request)
            held = sorted([*self.running, *self.loading.values()], key=_admission)
            for request in reversed(held):
                self.preempt(request)

    @property
    def idle(self) -> bool:
        """Whether there are no requests."""
        return not (self.waiting or self.loading or self.running)


def _admission(request: SimRequest) -> int:
    return request.admission

"""A worker runs the core's plans on a copy engine and on tiers, and says what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtide.copy import CopyEngine, Direction, Fence, Traffic
from kvtide.core.messages import Copy, Plan, Pool, Report
from kvtide.core.share import ALL, Share
from kvtide.errors import describe

if TYPE_CHECKING:  # tiers need packages that those who have none need not install
    from kvtide.tiers import TierStats
    from kvtide.tiers.stack import TierStack


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a worker did since it was made."""

    store: Traffic
    load: Traffic
    done: int
    """Transfers reported as done."""
    failed: int
    """Transfers reported as failed."""
    waits_expired: int
    """Times that a plan's `wait_for` was given up at the deadline; the transfers go on."""
    engine_errors: int
    """Times that the copy engine raised. It never should."""


class Worker:
    """Runs plans for one rank. Reports every transfer once, and nothing the copy engine does kills it (F17).

    Examples:
        >>> from kvtide.copy import NullCopyEngine
        >>> worker = Worker(rank=0, engine=NullCopyEngine())
        >>> worker.start(Plan(step=1, stores=(Copy(id=7, blocks=(3,), slots=(0,)),)))
        >>> worker.poll().done
        (7,)

    """

    def __init__(
        self,
        rank: int,
        engine: CopyEngine,
        *,
        tiers: TierStack | None = None,
        wait_timeout_s: float = 5.0,
        share: Share = ALL,
        slots: int | None = None,
    ) -> None:
        """`share` is what this rank stores, where others have the same bytes and write to the same host slots.

        `slots`: how many there are, if that is to be reported. An engine that pins them says how many it has so far.
        """
        self.rank = rank
        self._engine = engine
        self._share = share
        self._slots = slots
        self._tiers = tiers
        self._wait_timeout_s = wait_timeout_s
        self._in_flight: set[int] = set()
        """Transfers that the engine has taken and this worker has not reported."""
        self._failed: dict[int, str] = {}
        """Transfers that the engine did not take, until the next report."""
        self._over: str | None = None
        """Why no more transfers are taken: the worker was closed, or the engine broke."""
        self._slots_ready: tuple[int, int | None] = (0, None)
        """What was said last: of which memory, and how many."""
        self._traffic = dict.fromkeys(Direction, Traffic())
        self._done_count = 0
        self._failed_count = 0
        self._waits_expired = 0
        self._engine_errors = 0

    def use(self, pool: Pool | None) -> None:
        """Take note of where host slots are: `Plan.pool`, once in each step, before its copies are started.

        Only needed where a node keeps them. An engine may start a plan in several parts.
        """
        try:
            self._engine.use(pool)
        except Exception:
            self._engine_errors += 1

    def start(self, plan: Plan, after: Fence | None = None) -> None:
        """Begin a plan's copies, loads first, and its errands, then wait for `plan.wait_for`, with a deadline.

        `after` is the compute that the copies must come after. None: it has ended (F6, F7).
        """
        for id_ in plan.ask:
            self._answer(id_)
        for copy in plan.loads:
            self._submit(Direction.LOAD, copy, after)
        for copy in plan.stores:
            self._submit(Direction.STORE, self._share.of_store(copy), after)
        if self._tiers is not None:
            for errand in plan.errands:
                self._tiers.start(errand)
        if plan.wait_for:
            self._wait_for(plan.wait_for)

    def poll(self) -> Report:
        """Say what ended since the last call, each transfer once. Does not block."""
        done: tuple[int, ...] = ()
        not_kept: tuple[tuple[int, tuple[int, ...]], ...] = ()
        failed, self._failed = self._failed, {}
        try:
            done, engine_failed, not_kept = self._engine.poll()
        except Exception as error:
            self._engine_errors += 1
            self.stop(f"the copy engine broke: {describe(error)}")
        else:
            # What is not in flight was reported before, or was refused by a submit that raised.
            done = tuple(filter(self._in_flight.__contains__, done))
            failed.update((id_, why) for id_, why in engine_failed if id_ in self._in_flight)
        self._in_flight.difference_update(done, failed)
        if self._over is not None:
            failed.update(self._abandon(self._over))
        self._done_count += len(done)
        self._failed_count += len(failed)
        answers, late = self._tiers.poll() if self._tiers is not None else ((), ())
        not_kept = tuple(pair for pair in not_kept if pair[0] in done)
        life, slots_ready = self._news_of_slots()
        return Report(self.rank, done, tuple(failed.items()), slots_ready, answers, late, life, not_kept)

    def settle(self, timeout_s: float) -> bool:
        """Wait until no copy is under way, so that device memory may be given back. Returns False if time ran out."""
        try:
            settled = self._engine.wait(tuple(self._in_flight), timeout_s)
            if settled:
                self._engine.device_memory_goes()
        except Exception:
            self._engine_errors += 1
            return False
        return settled

    def close(self, timeout_s: float = 5.0) -> bool:
        """Close the copy engine and the tiers. A last `poll` reports what was in flight. May be called again.

        Returns whether nothing moves any more, so that the memory on both sides may be given back. If not, what
        still moves is reported by a later `poll`.
        """
        self.stop("the worker was closed")
        closed = self._close_engine(timeout_s)
        return (self._tiers is None or self._tiers.close(timeout_s)) and closed

    def stop(self, why: str) -> None:
        """Take no more transfers. Those under way are reported as soon as nothing moves any more."""
        self._over = self._over or why

    @property
    def busy(self) -> bool:
        """Whether transfers are under way, or were when it was last looked."""
        return bool(self._in_flight)

    @property
    def over(self) -> str | None:
        """Why no transfer is taken any more, ever; None as long as they are."""
        return self._over

    def tier_stats(self) -> dict[str, TierStats]:
        """Return what each tier below host memory has done and holds, by name."""
        return {} if self._tiers is None else self._tiers.stats()

    @property
    def stats(self) -> WorkerStats:
        """What was moved so far and how it went."""
        return WorkerStats(
            store=self._ask_traffic(Direction.STORE),
            load=self._ask_traffic(Direction.LOAD),
            done=self._done_count,
            failed=self._failed_count,
            waits_expired=self._waits_expired,
            engine_errors=self._engine_errors,
        )

    def _answer(self, id_: int) -> None:
        """Say of an overdue transfer that it is not under way here, so that its memory may be used again.

        It ended and nobody heard of it, or it never began. If it is under way its end will be reported, whenever
        that comes.
        """
        in_tiers = self._tiers is not None and self._tiers.knows(id_)
        if id_ not in self._in_flight and not in_tiers:
            self._failed.setdefault(id_, "this rank has no such transfer under way")

    def _submit(self, direction: Direction, copy: Copy, after: Fence | None) -> None:
        if copy.id in self._in_flight or copy.id in self._failed:
            return  # the plan came twice
        why = self._over or "the copy engine is full or closed"
        try:
            taken = self._over is None and self._engine.submit(direction, copy, after)
        except Exception as error:
            self._engine_errors += 1
            taken, why = False, describe(error)
        if taken:
            self._in_flight.add(copy.id)
        else:
            self._failed[copy.id] = why

    def _wait_for(self, ids: tuple[int, ...]) -> None:
        try:
            if self._tiers is not None and any(map(self._tiers.knows, ids)):
                ended = self._tiers.wait(ids, self._wait_timeout_s)
            else:
                ended = self._engine.wait(ids, self._wait_timeout_s)
        except Exception:
            self._engine_errors += 1
        else:
            self._waits_expired += not ended

    def _news_of_slots(self) -> tuple[int, int | None]:
        """Return how many slots are ready, if that has changed, and of which memory."""
        before = self._slots_ready
        try:
            ready = self._engine.slots_ready()
            self._slots_ready = self._engine.life, self._slots if ready is None else ready
        except Exception:
            self._engine_errors += 1
        return self._slots_ready if self._slots_ready != before else (0, None)

    def _ask_traffic(self, direction: Direction) -> Traffic:
        try:
            self._traffic[direction] = self._engine.traffic(direction)
        except Exception:
            self._engine_errors += 1  # and answer with what was known last
        return self._traffic[direction]

    def _abandon(self, why: str) -> dict[int, str]:
        """Fail what is left in flight, when it is certain that nothing moves any more.

        A transfer must not be called failed while its bytes may still move: its blocks would be given to someone
        else. As long as the engine does not close, its transfers stay in flight, and the next poll tries again.
        """
        if not self._in_flight or not self._close_engine(timeout_s=0.0):
            return {}
        abandoned = dict.fromkeys(sorted(self._in_flight), why)
        self._in_flight.clear()
        return abandoned

    def _close_engine(self, timeout_s: float) -> bool:
        try:
            return self._engine.close(timeout_s)
        except Exception:
            self._engine_errors += 1
            return False

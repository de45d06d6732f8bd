"""Canaries that kill or hang the engine."""

from __future__ import annotations

from kvtide.core.ledger import Entry, Ledger, LoadEntry
from kvtide.core.loading.loads import Loads
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Match
from kvtide.core.messages import Answer
from kvtide.core.requests import Request
from kvtide.core.storing.stores import Stores
from kvtide.sim.canaries.base import Canary, Patches, caught_by
from kvtide.sim.copies import CopyCrash, Job, SimCopyEngine


def _unkept_promise() -> Patches:
    admit, release = Loads.admit, Loads.release
    loose: dict[str, None] = {}

    def reserve_without_pin(self: Loads, request: Request, match: Match) -> None:
        release_loosely(self, request)
        request.reservation = match
        loose[request.id] = None
        self._below.reserved(request, match)

    def release_loosely(self: Loads, request: Request) -> None:
        if request.id in loose:
            del loose[request.id]
            request.reservation = None
        else:
            release(self, request)

    def pin_late(self: Loads, request: Request, accepted_tokens: int) -> bool:
        if request.id in loose and request.reservation is not None:
            del loose[request.id]
            self._host.pin(request.reservation.slots)
        return admit(self, request, accepted_tokens)

    return [(Loads, "reserve", reserve_without_pin), (Loads, "release", release_loosely), (Loads, "admit", pin_late)]


def _unbounded_pins() -> Patches:
    return [(Stores, "room", property(lambda _: 1 << 30))]


def _copy_loop_dies() -> Patches:
    begin, end = SimCopyEngine._begin, SimCopyEngine._end
    dead: set[int] = set()

    def dies(self: SimCopyEngine, job: Job, crash: CopyCrash) -> None:
        dead.add(id(self))

    def begin_if_alive(self: SimCopyEngine, job: Job) -> None:
        if id(self) not in dead:
            begin(self, job)

    def end_if_alive(self: SimCopyEngine, job: Job) -> None:
        if id(self) not in dead:
            end(self, job)

    return [
        (SimCopyEngine, "_crashed", dies),
        (SimCopyEngine, "_begin", begin_if_alive),
        (SimCopyEngine, "_end", end_if_alive),
    ]


def _assert_known() -> Patches:
    hear = Ledger._hear

    def trusting(
        self: Ledger, rank: int, transfer_id: int, failure: str | None, answer: Answer | None = None
    ) -> Entry | None:
        assert self.get(transfer_id) is not None, f"unknown transfer {transfer_id}"
        return hear(self, rank, transfer_id, failure, answer)

    return [(Ledger, "_hear", trusting)]


def _finish_returns_pins() -> Patches:
    finish = OffloadManager.finish

    def hasty(self: OffloadManager, request_id: str) -> None:
        load_id = self._requests[request_id].load_id
        for transfer in self._ledger:
            if transfer.id == load_id and isinstance(transfer, LoadEntry):
                self._loads._device.unpin(transfer.blocks)
        finish(self, request_id)

    return [(OffloadManager, "finish", hasty)]


def _overdue_returns_pins() -> Patches:
    passed = OffloadManager.passed

    def hasty(self: OffloadManager, seconds: float) -> None:
        passed(self, seconds)
        for load in self._ledger.overdue:
            if isinstance(load, LoadEntry):
                self._loads._device.unpin(load.blocks)
                self._loads._host.unpin(load.slots)
                load.blocks, load.slots = [], []

    return [(OffloadManager, "passed", hasty)]


def _never_overdue() -> Patches:
    def patient(self: Ledger, seconds: float) -> list[Entry]:
        return []

    return [(Ledger, "passed", patient)]


def _stores_after_stop() -> Patches:
    def only_reset(self: OffloadManager) -> None:
        self.reset(below=False)

    return [(OffloadManager, "stop", only_reset)]


HANGING = (
    Canary(
        "F11",
        "unkept-promise",
        "what was offered is not kept until it is accepted",
        _unkept_promise,
        caught_by("I2", "I6"),
    ),
    Canary("F12", "unbounded-pins", "stores pin as many device blocks as they like", _unbounded_pins, caught_by("I9")),
    Canary("F15", "copy-loop-dies", "an exception ends the copy loop of a rank", _copy_loop_dies, caught_by("I8")),
    Canary(
        "F16",
        "assert-known",
        "a report about an unknown transfer is an assertion",
        _assert_known,
        caught_by(),
        raises="AssertionError",
    ),
    Canary(
        "F16",
        "finish-returns-pins",
        "a request that ends returns the pins of its load at once",
        _finish_returns_pins,
        caught_by("I1", "I5"),
    ),
    Canary(
        "F15",
        "overdue-returns-pins",
        "the pins of a load are returned as soon as it is overdue",
        _overdue_returns_pins,
        caught_by("I1", "I2", "I5"),
    ),
    Canary(
        "F15",
        "never-overdue",
        "a rank that says nothing is waited for without end",
        _never_overdue,
        caught_by("I8"),
    ),
    Canary(
        "F15",
        "stores-after-stop",
        "a rank has lost its device, and what is computed is stored all the same",
        _stores_after_stop,
        caught_by("I8"),
    ),
)

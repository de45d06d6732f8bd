"""Canaries in the worker and in the stack of tiers."""

from __future__ import annotations

from dataclasses import replace

from kvtide.copy import Direction, Fence
from kvtide.core.messages import Answer, Copy, Fetch, Lookup, Report
from kvtide.sim.canaries.base import Canary, Patches, caught_by
from kvtide.tiers.stack import TierStack
from kvtide.worker import Worker


def _reported_twice() -> Patches:
    poll = Worker.poll
    said: dict[int, tuple[int, ...]] = {}

    def repeating(self: Worker) -> Report:
        report = poll(self)
        again, said[id(self)] = said.get(id(self), ()), report.done
        return replace(report, done=report.done + again)

    return [(Worker, "poll", repeating)]


def _refusals_forgotten() -> Patches:
    submit = Worker._submit

    def forgetful(self: Worker, direction: Direction, copy: Copy, after: Fence | None) -> None:
        submit(self, direction, copy, after)
        self._failed.pop(copy.id, None)

    return [(Worker, "_submit", forgetful)]


def _engine_kills() -> Patches:
    def trusting(self: Worker, direction: Direction, copy: Copy, after: Fence | None) -> None:
        if self._over is None and self._engine.submit(direction, copy, after):
            self._in_flight.add(copy.id)
        else:
            self._failed[copy.id] = "it was not taken"

    return [(Worker, "_submit", trusting)]


def _abandoned_while_moving() -> Patches:
    def hasty(self: Worker, why: str) -> dict[int, str]:
        abandoned = dict.fromkeys(sorted(self._in_flight), why)
        self._in_flight.clear()
        return abandoned

    return [(Worker, "_abandon", hasty)]


def _denied_when_asked() -> Patches:
    def denying(self: Worker, id_: int) -> None:
        self._failed.setdefault(id_, "this rank has no such transfer under way")

    return [(Worker, "_answer", denying)]


def _late_is_over() -> Patches:
    look = TierStack._look_at_the_clock

    def hasty(self: TierStack) -> None:
        look(self)
        for job in list(self._jobs.values()):
            if isinstance(job.errand, Fetch) and job.late:
                self._end(job)

    return [(TierStack, "_look_at_the_clock", hasty)]


def _late_in_silence() -> Patches:
    poll = TierStack.poll

    def silent(self: TierStack) -> tuple[tuple[Answer, ...], tuple[int, ...]]:
        return poll(self)[0], ()

    return [(TierStack, "poll", silent)]


def _patient_lookups() -> Patches:
    look = TierStack._look_at_the_clock

    def patient(self: TierStack) -> None:
        jobs = self._jobs
        self._jobs = {id_: job for id_, job in jobs.items() if not isinstance(job.errand, Lookup)}
        look(self)
        self._jobs = jobs

    return [(TierStack, "_look_at_the_clock", patient)]


WORKERS = (
    Canary("F16", "reported-twice", "a worker reports what is done again", _reported_twice, caught_by("I8")),
    Canary(
        "F15",
        "refusals-forgotten",
        "a worker says nothing of what its copy engine has not taken",
        _refusals_forgotten,
        caught_by("I8"),
    ),
    Canary(
        "F17",
        "engine-kills",
        "what a copy engine raises is let through",
        _engine_kills,
        caught_by(),
        raises="CopyCrash",
    ),
    Canary(
        "F16",
        "abandoned-while-moving",
        "a worker that stops calls copies failed that still run",
        _abandoned_while_moving,
        caught_by("I1", "I8"),
    ),
    Canary(
        "F16",
        "denied-when-asked",
        "a worker that is asked for an overdue transfer says that there is none",
        _denied_when_asked,
        caught_by("I8"),
    ),
    Canary(
        "F18", "late-is-over", "a fetch is answered when it is late, and still written", _late_is_over, caught_by("I8")
    ),
    Canary("F18", "late-in-silence", "nobody is told that a fetch is late", _late_in_silence, caught_by("I8")),
    Canary("F18", "patient-lookups", "lookups have no deadline", _patient_lookups, caught_by("I8")),
)

"""Canaries in the worker and in the stack of tiers."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvtide.copy import Direction, Fence
from kvtide.core.messages import Answer, Copy, Fetch, Lookup, Report
from kvtide.sim.canaries.base import Patches, around, canary
from kvtide.tiers.stack import TierStack
from kvtide.worker import Worker


@canary("F16", "a worker reports what is done again", "I8")
def reported_twice() -> Patches:
    said: dict[int, tuple[int, ...]] = {}

    def repeating(poll: Callable[..., Report], self: Worker) -> Report:
        report = poll(self)
        again, said[id(self)] = said.get(id(self), ()), report.done
        return replace(report, done=report.done + again)

    return [around(Worker, "poll", repeating)]


@canary("F15", "a worker says nothing of what its copy engine has not taken", "I8")
def refusals_forgotten() -> Patches:
    def forgetful(submit: Callable[..., None], self: Worker, direction: Direction, copy: Copy, after: Fence) -> None:
        submit(self, direction, copy, after)
        self._failed.pop(copy.id, None)

    return [around(Worker, "_submit", forgetful)]


@canary("F17", "what a copy engine raises is let through", raises="CopyCrash")
def engine_kills() -> Patches:
    def trusting(self: Worker, direction: Direction, copy: Copy, after: Fence | None) -> None:
        if self._over is None and self._engine.submit(direction, copy, after):
            self._in_flight.add(copy.id)
        else:
            self._failed[copy.id] = "it was not taken"

    return [(Worker, "_submit", trusting)]


@canary("F16", "a worker that stops calls copies failed that still run", "I1", "I8")
def abandoned_while_moving() -> Patches:
    def hasty(self: Worker, why: str) -> dict[int, str]:
        abandoned = dict.fromkeys(sorted(self._in_flight), why)
        self._in_flight.clear()
        return abandoned

    return [(Worker, "_abandon", hasty)]


@canary("F16", "a worker that is asked for an overdue transfer says that there is none", "I8")
def denied_when_asked() -> Patches:
    def denying(self: Worker, id_: int) -> None:
        self._failed.setdefault(id_, "this rank has no such transfer under way")

    return [(Worker, "_answer", denying)]


@canary("F18", "a fetch is answered when it is late, and still written", "I8")
def late_is_over() -> Patches:
    def hasty(look: Callable[..., None], self: TierStack) -> None:
        look(self)
        for job in list(self._jobs.values()):
            if isinstance(job.errand, Fetch) and job.late:
                self._end(job)

    return [around(TierStack, "_look_at_the_clock", hasty)]


@canary("F18", "nobody is told that a fetch is late", "I8")
def late_in_silence() -> Patches:
    def silent(poll: Callable[..., tuple[tuple[Answer, ...], tuple[int, ...]]], self: TierStack) -> object:
        return poll(self)[0], ()

    return [around(TierStack, "poll", silent)]


@canary("F18", "lookups have no deadline", "I8")
def patient_lookups() -> Patches:
    def patient(look: Callable[..., None], self: TierStack) -> None:
        jobs = self._jobs
        self._jobs = {id_: job for id_, job in jobs.items() if not isinstance(job.errand, Lookup)}
        look(self)
        self._jobs = jobs

    return [around(TierStack, "_look_at_the_clock", patient)]

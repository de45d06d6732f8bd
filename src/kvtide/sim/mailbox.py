"""The way of reports from ranks to the host: late, repeated, stray, lost."""

from __future__ import annotations

from dataclasses import replace

from kvtide.core.messages import Report
from kvtide.sim.rank import Rank
from kvtide.sim.run import Run

REPEAT_STEPS_MAX = 30
SILENCE, SILENT_STEPS_MAX = 48, 40
"""How often in 256 times that a rank is silent none of its reports comes, and for how many steps at most: it says
nothing then, not even when it is asked.
"""
STRAY_ID = 1 << 30
"""Far above any transfer that exists."""


class Mailbox:
    """Collects what ranks say, once per step."""

    def __init__(self, run: Run, ranks: list[Rank]) -> None:
        self._silent_chance = run.world.faults.silent_rank
        self._happens = run.happens
        self._host_slots = run.world.host_slots
        self._ranks = ranks
        self._draw = run.draw
        self._fault_counts = run.fault_counts
        self._late: list[tuple[int, Report]] = []
        """Reports that are under way, with the number of steps until they come."""
        self._silent_steps = [0] * len(ranks)
        """Per rank: for how many more steps nothing comes of it."""

    def collect(self) -> list[Report]:
        """Return the reports that arrive in this step."""
        arriving: list[Report] = []
        if self._late:
            arriving = [report for steps, report in self._late if steps <= 1]
            self._late = [(steps - 1, report) for steps, report in self._late if steps > 1]
        for rank in self._ranks:
            if rank.slots_ready < self._host_slots:
                rank.pin_more()
            if (rank.has_news or rank.restless) and (report := rank.poll()):
                self._hear(report, arriving)
            if self._silent_steps[rank.index]:
                self._silent_steps[rank.index] -= 1
        if self._happens("stray_report"):
            arriving.append(self._stray())
        return arriving

    def _stray(self) -> Report:
        """Return a report of a rank that exists about a transfer that does not, or the other way round."""
        rank = self._draw.below(len(self._ranks) + 2)
        if rank < len(self._ranks):
            return Report(rank, done=(STRAY_ID,))
        return Report(rank, done=tuple(sorted(self._ranks[0].copies.unfinished)))

    def _hear(self, report: Report, arriving: list[Report]) -> None:
        """Let a report come, unless its rank is silent: then nothing comes of what it says of transfers.

        It does not know that, so who asks hears that nothing is under way; but maybe not before long.
        """
        silent = self._draw.chance(self._silent_chance) and self._draw.chance(SILENCE)
        if silent and not self._silent_steps[report.rank]:
            self._silent_steps[report.rank] = self._draw.skewed(1, SILENT_STEPS_MAX)
        if not self._silent_steps[report.rank]:
            self._send(report, arriving)
            return
        self._fault_counts["silent_rank"] += 1
        if self._draw.chance(64):  # what nobody believes any more comes after all
            self._late.append((SILENT_STEPS_MAX, report))
        arriving.append(replace(report, done=(), failed=(), answers=(), late=(), not_kept=()))

    def _send(self, report: Report, arriving: list[Report]) -> None:
        delay_steps = self._draw.skewed(1, 6) if self._happens("lost_report") else 0
        self._put(delay_steps, report, arriving)
        if self._happens("repeated_report"):
            # Later than the first one, which is the true one.
            again = self._contradict(report) if self._draw.chance(64) else report
            self._put(delay_steps + self._draw.skewed(0, REPEAT_STEPS_MAX), again, arriving)

    def _put(self, delay_steps: int, report: Report, arriving: list[Report]) -> None:
        if delay_steps:
            self._late.append((delay_steps, report))
        else:
            arriving.append(report)

    def _contradict(self, report: Report) -> Report:
        """Return the same report with the opposite said of each transfer, as a confused rank might."""
        return Report(
            report.rank,
            done=tuple(transfer for transfer, _ in report.failed),
            failed=tuple((transfer, "on second thought") for transfer in report.done),
        )

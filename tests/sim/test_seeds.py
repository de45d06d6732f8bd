"""Worlds of fixed seeds: what fails here was changed. `make soak` tries fresh ones."""

from __future__ import annotations

import pytest

from kvtide.sim.batch import run_chunk
from kvtide.sim.present import violation_lines
from kvtide.sim.tally import Tally

SEEDS = 300
PIECES = 4


@pytest.mark.parametrize("piece", range(PIECES))
def test_no_seed_violates_anything(piece: int) -> None:
    tally = run_chunk(piece * SEEDS, SEEDS, {})
    lines = [line for found in tally.found for line in violation_lines(found, {})]
    assert not tally.violations, "\n".join(lines)


def test_no_fault_and_no_reason_is_so_rare_that_it_never_happens() -> None:
    tally = Tally()
    for first in range(0, 3000, 50):
        tally.merge(run_chunk(first, 50, {}))
        if not tally.never_happened():
            break
    assert not tally.never_happened()
    assert {"with loads", "with preemptions", "eager", "lazy", "depth 2", "ranks 4"} <= set(tally.worlds)

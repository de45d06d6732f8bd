"""Seeds that nobody has ever tried. Those that fail are printed with the command that shows them."""

from __future__ import annotations

import random
import sys

import pytest

from kvtide.sim.batch import run_chunk
from kvtide.sim.present import violation_lines
from kvtide.sim.tally import Tally

SEEDS = 300
PIECES = 4


@pytest.mark.parametrize("piece", range(PIECES))
def test_no_fresh_seed_violates_anything(piece: int, capfd: pytest.CaptureFixture[str]) -> None:
    first = random.SystemRandom().getrandbits(40)
    tally = run_chunk(first, SEEDS, {})
    lines = [line for found in tally.found for line in violation_lines(found, {})]
    with capfd.disabled():
        sys.stderr.write(f"\nsimulated seeds {first} to {first + SEEDS - 1}: {tally.steps} steps\n")
    assert not tally.violations, "\n".join([f"seeds from {first} on", *lines])


def test_no_fault_and_no_reason_is_so_rare_that_it_never_happens() -> None:
    tally = Tally()
    for first in range(0, 3000, 50):
        tally.merge(run_chunk(first, 50, {}))
        if not tally.never_happened():
            break
    assert not tally.never_happened()
    assert {"with loads", "with preemptions", "eager", "lazy", "depth 2", "ranks 4"} <= set(tally.worlds)

"""Progress is shown on terminals as bars and elsewhere as lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvtide.demo import at_node
from kvtide.demo.compare import RUNS
from kvtide.demo.progress import LABELS, shown


@pytest.mark.parametrize("terminal", [True, False])
def test_every_run_is_shown(terminal: bool) -> None:
    out = io.StringIO()
    with shown(Console(file=out, force_terminal=terminal, width=100), turns=2) as on_turn:
        for run in RUNS:
            for done in range(3):
                on_turn(run, done)
    for run in RUNS:
        assert LABELS[run] in out.getvalue()


def test_runs_at_a_node_are_shown_too() -> None:
    out = io.StringIO()
    with shown(Console(file=out, force_terminal=True, width=100), turns=1, runs=at_node.RUNS) as on_turn:
        for run in at_node.RUNS:
            on_turn(run, 1)
    for run in at_node.RUNS:
        assert LABELS[run] in out.getvalue()


def test_elsewhere_each_run_takes_one_line() -> None:
    out = io.StringIO()
    with shown(Console(file=out), turns=2) as on_turn:
        for done in range(3):
            on_turn("eager", done)
    assert out.getvalue().startswith("==> kvtide, eager: 2 turns in ")
    assert out.getvalue().count("\n") == 1

"""Checkers share nothing with what they check, and each invariant can be seen to be violated."""

from __future__ import annotations

import ast
from pathlib import Path

from kvtide.sim import checkers
from kvtide.sim.batch import run_seed
from kvtide.sim.canaries import CANARIES
from kvtide.sim.checkers.watch import CHECKERS

ALLOWED = {
    "kvtide.core.events",  # the event stream,
    "kvtide.core.wire",  # the messages,
    "kvtide.core.groups",  # what a null block is,
    "kvtide.core.reasons",  # and the names of the counters are the core's public face;
    "kvtide.core.metrics",
    "kvtide.core.manager",  # so is the façade, of which gauges and metrics are read
}
INVARIANTS = {f"I{number}" for number in range(1, 10)}


def imports_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_checkers_import_nothing_of_the_core_but_its_public_face() -> None:
    folder = Path(checkers.__file__).parent
    for path in sorted(folder.glob("*.py")):
        core = {module for module in imports_of(path) if module.startswith("kvtide.core")}
        assert core <= ALLOWED, f"{path.name} imports {core - ALLOWED}"


def test_checkers_look_at_no_private_attribute_of_the_manager() -> None:
    folder = Path(checkers.__file__).parent
    for path in sorted(folder.glob("*.py")):
        assert "manager._" not in path.read_text(), path.name


def test_there_is_a_checker_for_every_invariant() -> None:
    # I2 is checked together with I1: both are about who owns what a transfer uses.
    assert {checker.invariant for checker in CHECKERS} == INVARIANTS - {"I2"}


def test_every_invariant_can_be_seen_to_be_violated() -> None:
    seen = set()
    for canary in CANARIES:
        with canary.applied():
            found = [run_seed(seed, {}).found for seed in range(30)]
        seen |= {violation.invariant for violation in found if violation is not None}
    assert seen == INVARIANTS

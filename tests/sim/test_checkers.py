"""Checkers share nothing with what they check, and each invariant can be seen to be violated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtide import sim
from kvtide.sim import checkers
from kvtide.sim.batch import run_seed
from kvtide.sim.canaries import CANARIES, Canary
from kvtide.sim.checkers.watch import CHECKERS
from kvtide.sim.node.engine_side import AtNodeChecker
from kvtide.sim.node.watch import NODE_CHECKERS
from kvtide.sim.simulation import Found

SIM = Path(sim.__file__).parent
UNDER_TEST = {"facade.py", "configuration.py", "rank.py", "node.py", "tiers.py"}
"""These make the manager, the index of a node, the workers and the stacks of tiers under test, and talk to them.
Canaries reach into them on purpose. Others are the oracle, and the machine below what is under test."""
ALLOWED = {
    "kvtide.core.config": {"Admission", "BelowConfig", "Mode"},  # words of the configuration,
    "kvtide.core.device": {"BlockContent", "DevicePool", "FreeBlock"},  # what the pool is asked,
    "kvtide.core.events": {"CacheEvent", "Cleared", "Removed", "Stored"},  # the event stream,
    "kvtide.core.eviction": {"POLICIES"},  # names of policies,
    "kvtide.core.groups": {"NULL_BLOCK", "Key"},  # how a block that is not there is written,
    "kvtide.core.manager": {"OffloadManager"},  # the façade, of which gauges and counters are read,
    "kvtide.core.match": {"Match"},  # what it offers,
    "kvtide.core.metrics": {"Gauges", "Metrics"},
    "kvtide.core.reasons": {"NotLoaded", "NotStored", "NotSunk"},
    "kvtide.core.messages": None,  # the messages, all of them,
    "kvtide.core.index": {"calls"},
    "kvtide.core.index.calls": None,  # those between engines and a node too,
    "kvtide.core.index.link": {"Link"},  # and the interface of the way between,
    "kvtide.copy.base": {
        "CopyEngine",
        "Direction",
        "Fence",
        "Finished",
        "Traffic",
    },  # what a worker asks of copy engines
    "kvtide.tiers.base": None,  # and a stack of its tiers, interfaces all of them,
    "kvtide.tiers.config": {"Write"},  # and a word.
}
"""Types and words: nothing that decides, computes or remembers."""
INVARIANTS = {f"I{number}" for number in range(1, 16)}


def imported(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def oracle_files() -> list[Path]:
    return [
        path for path in sorted(SIM.rglob("*.py")) if path.name not in UNDER_TEST and path.parent.name != "canaries"
    ]


@pytest.mark.parametrize("path", oracle_files(), ids=lambda path: str(path.relative_to(SIM)))
def test_the_oracle_imports_nothing_of_what_is_under_test_but_types_and_words(path: Path) -> None:
    for module, name in imported(path):
        if module.split(".")[:2] in (["kvtide", "core"], ["kvtide", "copy"], ["kvtide", "tiers"], ["kvtide", "worker"]):
            allowed = ALLOWED.get(module, set())
            assert allowed is None or name in allowed, f"{path.name} imports {name} from {module}"


def test_the_files_that_share_nothing_are_most_of_the_simulator() -> None:
    assert {"attention.py", "work.py", "tables.py", "engine.py", "observed.py", "watch.py"} <= {
        path.name for path in oracle_files()
    }


def test_checkers_look_at_no_private_attribute_of_the_manager_and_at_no_worker_or_stack() -> None:
    folder = Path(checkers.__file__).parent
    for path in sorted(folder.glob("*.py")):
        text = path.read_text()
        assert not any(private in text for private in ("manager._", "worker.", "stack.")), path.name


def test_there_is_a_checker_for_every_invariant() -> None:
    everywhere = {checker.invariant for checker in CHECKERS}
    at_a_node = {AtNodeChecker.invariant, *(checker.invariant for checker in NODE_CHECKERS)}
    assert everywhere | at_a_node == INVARIANTS
    assert not everywhere & at_a_node


@pytest.mark.parametrize("invariant", sorted(INVARIANTS))
def test_every_invariant_can_be_seen_to_be_violated(invariant: str) -> None:
    assert any(
        violation.invariant == invariant
        for canary in CANARIES
        if invariant in canary.by
        for violation in violations(canary)
    )


def violations(canary: Canary) -> Iterator[Found]:
    with canary.applied():
        for seed in range(300):
            found = run_seed(seed, canary.world).found
            if found is not None:
                yield found

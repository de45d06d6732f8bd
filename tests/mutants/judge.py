"""The judges: the tests that call the changed function, the quickest first, and then seeds of the simulator.

pytest collects the tests once. Each mutant is judged in a fork of that process, which ends at the first thing that
goes wrong.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import hypothesis
import pytest

from tests.mutants.fork import in_a_fork, limit_cpu
from tests.mutants.mutant import CORE, ROOT, Mutant, Place
from tests.mutants.swap import MutatedImport, Where, functions_in_memory, swap, where

SEEDS, SEEDS_QUICK = 300, 10
"""Worlds of the simulator that a mutant has to survive."""
QUICK_S = 1.5
"""As many tests of other files are asked as fit into it when it has to be quick."""
SEED_CPU_S = 5.0
"""The longest of them takes a tenth of it."""
TEST_CPU_S = 2.0
"""What a test may take more than ten times its usual time."""
TESTS = ("tests/core", "tests/faults")
OPTIONS = ["-x", "--no-header", "--capture=no", "--assert=plain", f"--rootdir={ROOT}"]

Baseline = dict[str, tuple[float, set[Where]]]
"""Per test, how many seconds it takes and which functions of the core it calls."""


def repeatable() -> None:
    """Let property tests try the same examples every time, and not look for smaller ones. Before tests are imported."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    everything = list(hypothesis.HealthCheck)
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=phases, suppress_health_check=everything
    )
    hypothesis.settings.load_profile("mutants")


def run_seeds(count: int) -> str | None:
    """Return what the simulator has found, if anything."""
    from kvtide.sim.simulation import simulate  # noqa: PLC0415  a mutant may have to be imported first
    from kvtide.sim.world import World  # noqa: PLC0415  likewise

    for seed in range(count):
        limit_cpu(SEED_CPU_S)
        found = simulate(World.draw(seed)).found
        if found is not None:
            return f"simulator, seed {seed}: {found.invariant}: {found.what}"
    return None


@dataclass
class Judge:
    """A plugin of pytest: collects the tests, and then lets `use` judge mutants instead of running the tests."""

    use: Callable[[Judge], None]
    tests: tuple[str, ...] = TESTS
    quick: bool = False
    """Ask only those who answer at once. A mutant that survives is a suspect then, not more."""
    _items: list[pytest.Item] = field(default_factory=list)
    _baseline: Baseline = field(default_factory=dict)
    _noticed: set[tuple[str, Place, str]] = field(default_factory=set)
    """Tests that have noticed a change of the same function: the first to be asked."""
    _failed: str | None = None

    def collect(self) -> int:
        """Begin. Returns 0 unless pytest could not."""
        repeatable()
        return int(pytest.main([*OPTIONS, *self.tests], plugins=[self]))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out what each test does, and begin."""
        self._items = session.items
        self._functions = functions_in_memory()
        gc.freeze()  # forks share what is in memory by now
        outcome = in_a_fork(self._measure)
        assert isinstance(outcome, dict), f"without any change: {outcome}"
        self._baseline = outcome
        self.use(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what went wrong."""
        if report.failed:
            self._failed = report.nodeid

    def catches(self, mutant: Mutant) -> str | None:
        """Return who noticed a mutant: a test, or a seed of the simulator. None: it has survived."""
        judge = self._judge_import if mutant.place.function_line is None else self._judge_function
        outcome = in_a_fork(lambda: judge(mutant))
        assert outcome is None or isinstance(outcome, str)
        if outcome in self._baseline:
            self._noticed.add((mutant.file, mutant.place, outcome))
        return outcome

    def _measure(self) -> Baseline | str:
        core = str(CORE)
        called: set[Where] = set()

        def trace(frame: FrameType, event: str, _: Any) -> None:
            if frame.f_code.co_filename.startswith(core):
                called.add(where(frame.f_code))

        baseline: Baseline = {}
        for item in self._items:
            called.clear()
            begin_s = time.process_time()
            sys.settrace(trace)
            try:
                failed = self._run(item)
            finally:
                sys.settrace(None)
            if failed:
                return failed
            baseline[item.nodeid] = time.process_time() - begin_s, set(called)
        return run_seeds(self._seeds) or baseline

    @property
    def _seeds(self) -> int:
        return SEEDS_QUICK if self.quick else SEEDS

    def _run(self, item: pytest.Item) -> str | None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._failed

    def _judge_function(self, mutant: Mutant) -> str | None:
        swap(mutant, self._functions)
        changed = str(mutant.path), mutant.place.function_line
        likely = f"test_{mutant.path.name}::"  # the tests of that file
        usual_s = {name: seconds for name, (seconds, called) in self._baseline.items() if changed in called}

        def order(item: pytest.Item) -> tuple[bool, bool, float]:
            noticed = (mutant.file, mutant.place, item.nodeid) in self._noticed
            return not noticed, likely not in item.nodeid, usual_s[item.nodeid]

        spent_s = 0.0
        for item in sorted((item for item in self._items if item.nodeid in usual_s), key=order):
            spent_s += usual_s[item.nodeid] if likely not in item.nodeid else 0.0
            if self.quick and spent_s > QUICK_S:
                break
            limit_cpu(10 * usual_s[item.nodeid] + TEST_CPU_S)
            if failed := self._run(item):
                return failed
        return run_seeds(self._seeds)

    def _judge_import(self, mutant: Mutant) -> str | None:
        """Import everything again, with the change."""
        for name in list(sys.modules):
            if name.split(".")[0] in ("kvtide", "tests") and not name.startswith("tests.mutants"):
                del sys.modules[name]
        sys.meta_path.insert(0, MutatedImport(mutant))
        limit_cpu(10 * sum(seconds for seconds, _ in self._baseline.values()) + TEST_CPU_S)
        likely = [item.nodeid.split("::")[0] for item in self._items if f"test_{mutant.path.name}::" in item.nodeid]
        if pytest.main([*OPTIONS, *dict.fromkeys(likely), *self.tests]) != pytest.ExitCode.OK:
            return "the tests, all imported again"
        return run_seeds(self._seeds)

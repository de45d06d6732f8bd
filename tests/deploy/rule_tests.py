"""Prometheus' own unit tests of alert rules: all is well, and from a minute on one thing is not."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.prometheus_server import DEPLOY, alerts
from tests.not_tested import lacks

MINUTES = 120
FAULT_AT = 60
"""Minutes; all is well until then."""


@dataclass(frozen=True)
class RuleTests:
    """The rules of a file, and what they look at. A series is named without `prefix` and the labels that all have."""

    rules: str
    prefix: str
    labels: str
    counters: Mapping[str, int]
    """What each grows by in a minute while all is well. A faulty one grows by 50."""
    gauges: Mapping[str, tuple[int, int]]
    """What each is while all is well, and what it is when it is faulty."""
    faults: Mapping[str, tuple[str, int]]
    """The series that each alert is about, and for how many minutes the alert is held back."""

    def check_rules(self) -> None:
        """Check that Prometheus takes them, and that each has its fault here."""
        names = alerts(self.rules)
        assert f"{len(names)} rules found" in _promtool("check", "rules", str(DEPLOY / self.rules))
        assert self.faults.keys() == set(names)

    def check_quiet(self, folder: Path) -> None:
        """Check that no alert fires while all is well."""
        quiet = [_at(minute, alert, fires=False) for alert in self.faults for minute in (2, FAULT_AT, MINUTES)]
        self._check(folder, None, quiet)

    def check_fires(self, folder: Path, alert: str) -> None:
        """Check that an alert waits as long as it says, and then fires."""
        faulty, held_min = self.faults[alert]
        waits = [_at(FAULT_AT + minute, alert, fires=False) for minute in (0, held_min)]
        self._check(folder, faulty, [*waits, _at(FAULT_AT + held_min + 3, alert, fires=True)])

    def _check(self, folder: Path, faulty: str | None, expected: Collection[dict[str, object]]) -> None:
        inputs = [self._series(name, faulty) for name in (*self.counters, *self.gauges)]
        tests = [{"interval": "1m", "input_series": inputs, "promql_expr_test": list(expected)}]
        file = folder / "test.yml"
        rules = [str(DEPLOY / self.rules)]
        file.write_text(json.dumps({"rule_files": rules, "evaluation_interval": "1m", "tests": tests}))
        _promtool("test", "rules", str(file))

    def _series(self, name: str, faulty: str | None) -> dict[str, str]:
        """Return an input series of promtool: its name with labels, and its values minute by minute."""
        base, _, labels = name.partition("{")
        shown = f"{self.prefix}{base}{{{self.labels}{', ' + labels if labels else '}'}"
        after = MINUTES - FAULT_AT
        if name in self.gauges:
            well, then = self.gauges[name]
            return {"series": shown, "values": f"{well}x{FAULT_AT} {then if name == faulty else well}x{after}"}
        step = self.counters[name]
        then = 50 if name == faulty else step
        return {"series": shown, "values": f"0+{step}x{FAULT_AT} {step * FAULT_AT + then}+{then}x{after}"}


def _at(minute: int, alert: str, *, fires: bool) -> dict[str, object]:
    """Return what is expected of an alert at a time. Its texts are not looked at, so it is asked as a series."""
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fires else []
    return {
        "expr": f'count by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}})',
        "eval_time": f"{minute}m",
        "exp_samples": expected,
    }


def _promtool(*arguments: str) -> str:
    """Return what it says; it has to agree."""
    program = shutil.which("promtool")
    if program is None:
        lacks("the dashboard and the alerts", "`apt-get install prometheus`")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 (found by its name)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

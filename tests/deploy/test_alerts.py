"""Alerts fire after the time that they say, and not on a server that is well: Prometheus' own unit tests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.not_tested import lacks

RULES = Path(__file__).parents[2] / "deploy" / "alerts.yml"
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())
ENGINE = 'engine="0", instance="a:8000"'
MINUTES = 120
FAULT_AT = 60
"""Minutes; the server is well until then."""

COUNTERS = {
    'not_stored_total{reason="host_full"}': 0,
    "stores_failed_total": 0,
    "loads_failed_total": 0,
    "stored_blocks_total": 100,
    'not_loaded_total{reason="tier_late"}': 0,
    "loaded_tokens_total": 100,
    "reports_unknown_total": 0,
    "reports_repeated_total": 0,
    "transfers_overdue_total": 0,
    "events_lost_total": 0,
    'tier_keys_total{tier="disk", call="put", outcome="hit"}': 100,
    'tier_keys_total{tier="disk", call="put", outcome="failed"}': 0,
    'tier_corrupt_records_total{tier="disk"}': 0,
    'tier_wrong_secret_records_total{tier="disk"}': 0,
}
"""What each grows by in a minute while all is well."""
GAUGES = ("stopped", "transfers_unanswered", 'tier_off{tier="disk", rank="0"}')

FAULTS = {
    "KVTideStopped": ("stopped", 0),
    "KVTideRankSilent": ("transfers_unanswered", 1),
    "KVTideCopiesFail": ("loads_failed_total", 0),
    "KVTideHostFull": ('not_stored_total{reason="host_full"}', 10),
    "KVTideTierOff": ('tier_off{tier="disk", rank="0"}', 2),
    "KVTideTierPutsFail": ('tier_keys_total{tier="disk", call="put", outcome="failed"}', 5),
    "KVTideTierTooSlow": ('not_loaded_total{reason="tier_late"}', 10),
    "KVTideRecordsDoNotVerify": ('tier_corrupt_records_total{tier="disk"}', 0),
    "KVTideWrongKey": ('tier_wrong_secret_records_total{tier="disk"}', 0),
    "KVTideMessagesLost": ("events_lost_total", 0),
}
"""The series that grows by 50 a minute, or is 1, from a moment on; and for how many minutes the alert is held back."""


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        lacks("the dashboard and the alerts", "`apt-get install prometheus`")
    return found


def series(name: str, faulty: str | None) -> dict[str, str]:
    """Return an input series of promtool: its name with labels, and its values minute by minute."""
    base, _, labels = name.partition("{")
    shown = f"vllm:kvtide_{base}{{{ENGINE}{', ' + labels if labels else '}'}"
    if name in GAUGES:
        return {"series": shown, "values": f"0x{FAULT_AT} {int(name == faulty)}x{MINUTES - FAULT_AT}"}
    step = COUNTERS[name]
    then = 50 if name == faulty else step
    return {"series": shown, "values": f"0+{step}x{FAULT_AT} {step * FAULT_AT + then}+{then}x{MINUTES - FAULT_AT}"}


def at(minute: int, alert: str, *, fires: bool) -> dict[str, object]:
    """Return what is expected of an alert at a time. Its texts are not looked at, so it is asked as a series."""
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fires else []
    return {
        "expr": f'count by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}})',
        "eval_time": f"{minute}m",
        "exp_samples": expected,
    }


def check(promtool: str, folder: Path, faulty: str | None, *expected: dict[str, object]) -> None:
    inputs = [series(name, faulty) for name in (*COUNTERS, *GAUGES)]
    tests = [{"interval": "1m", "input_series": inputs, "promql_expr_test": list(expected)}]
    file = folder / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_rules(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout
    assert FAULTS.keys() == set(ALERTS)


def test_no_alert_fires_while_all_is_well(promtool: str, tmp_path: Path) -> None:
    quiet = [at(minute, alert, fires=False) for alert in ALERTS for minute in (2, FAULT_AT, MINUTES)]
    check(promtool, tmp_path, None, *quiet)


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_when_its_fault_has_lasted(promtool: str, tmp_path: Path, alert: str) -> None:
    faulty, held_min = FAULTS[alert]
    waits = [at(FAULT_AT + minute, alert, fires=False) for minute in (0, held_min)]
    check(promtool, tmp_path, faulty, *waits, at(FAULT_AT + held_min + 3, alert, fires=True))

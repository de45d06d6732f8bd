"""Alerts fire after the time that they say, and not on a server that is well: Prometheus' own unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.rule_tests import RuleTests

TESTS = RuleTests(
    rules="alerts.yml",
    prefix="vllm:kvtide_",
    labels='engine="0", instance="a:8000"',
    counters={
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
    },
    gauges={"stopped": (0, 1), "transfers_unanswered": (0, 1), 'tier_off{tier="disk", rank="0"}': (0, 1)},
    faults={
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
    },
)


def test_the_rules_are_rules() -> None:
    TESTS.check_rules()


def test_no_alert_fires_while_all_is_well(tmp_path: Path) -> None:
    TESTS.check_quiet(tmp_path)


@pytest.mark.parametrize("alert", TESTS.faults)
def test_an_alert_fires_when_its_fault_has_lasted(tmp_path: Path, alert: str) -> None:
    TESTS.check_fires(tmp_path, alert)

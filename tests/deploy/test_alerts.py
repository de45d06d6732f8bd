"""Alerts fire after the time that they say, and not while all is well: Prometheus' own unit tests.

That servers and nodes export what they ask for, and that their faults make them fire: `tests/vllm/test_alerts.py`,
`test_node_watched.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.rule_tests import RuleTests

SERVER = RuleTests(
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
    gauges={
        "stopped": (0, 1),
        "transfers_unanswered": (0, 1),
        "node_attached": (1, 0),
        'tier_off{tier="disk", rank="0"}': (0, 1),
    },
    faults={
        "KVTideStopped": ("stopped", 0),
        "KVTideRankSilent": ("transfers_unanswered", 1),
        "KVTideCopiesFail": ("loads_failed_total", 0),
        "KVTideHostFull": ('not_stored_total{reason="host_full"}', 10),
        "KVTideNodeAway": ("node_attached", 1),
        "KVTideTierOff": ('tier_off{tier="disk", rank="0"}', 2),
        "KVTideTierPutsFail": ('tier_keys_total{tier="disk", call="put", outcome="failed"}', 5),
        "KVTideTierTooSlow": ('not_loaded_total{reason="tier_late"}', 10),
        "KVTideRecordsDoNotVerify": ('tier_corrupt_records_total{tier="disk"}', 0),
        "KVTideWrongKey": ('tier_wrong_secret_records_total{tier="disk"}', 0),
        "KVTideMessagesLost": ("events_lost_total", 0),
    },
)

NODE = RuleTests(
    rules="alerts-node.yml",
    prefix="kvtide_node_",
    labels='instance="a:9400", namespace="n", model="m"',
    counters={
        "refused_total": 0,
        "closed_total": 0,
        "stored_blocks_total": 100,
        'not_stored_total{reason="host_full"}': 0,
        'tier_corrupt_records_total{tier="disk"}': 0,
    },
    gauges={
        "slots": (100, 100),
        "slots_ready": (100, 99),
        "slots_quarantined": (0, 1),
        "namespace_engines": (1, 1),
        'tier_up{tier="disk"}': (1, 0),
    },
    faults={
        "KVTideNodeQuarantine": ("slots_quarantined", 5),
        "KVTideNodeRefuses": ("refused_total", 0),
        "KVTideNodeGarbage": ("closed_total", 0),
        "KVTideNodeHostFull": ('not_stored_total{reason="host_full"}', 10),
        "KVTideNodeMemoryNotReady": ("slots_ready", 30),
        "KVTideNodeTierOff": ('tier_up{tier="disk"}', 2),
        "KVTideNodeRecordsDoNotVerify": ('tier_corrupt_records_total{tier="disk"}', 0),
    },
)

BOTH = pytest.mark.parametrize("tests", [SERVER, NODE], ids=["server", "node"])


@BOTH
def test_the_rules_are_rules(tests: RuleTests) -> None:
    tests.check_rules()


@BOTH
def test_no_alert_fires_while_all_is_well(tests: RuleTests, tmp_path: Path) -> None:
    tests.check_quiet(tmp_path)


@pytest.mark.parametrize(
    ("tests", "alert"), [pytest.param(tests, alert, id=alert) for tests in (SERVER, NODE) for alert in tests.faults]
)
def test_an_alert_fires_when_its_fault_has_lasted(tests: RuleTests, alert: str, tmp_path: Path) -> None:
    tests.check_fires(tmp_path, alert)

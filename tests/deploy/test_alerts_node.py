"""Alerts of a node fire after the time that they say, and not while it is well: Prometheus' own unit tests.

That a node exports what they ask for, and that its faults make them fire: `test_node_watched.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.rule_tests import RuleTests

TESTS = RuleTests(
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


def test_the_rules_are_rules() -> None:
    TESTS.check_rules()


def test_no_alert_fires_while_all_is_well(tmp_path: Path) -> None:
    TESTS.check_quiet(tmp_path)


@pytest.mark.parametrize("alert", TESTS.faults)
def test_an_alert_fires_when_its_fault_has_lasted(tmp_path: Path, alert: str) -> None:
    TESTS.check_fires(tmp_path, alert)

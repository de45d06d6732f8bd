"""Alerts of a node ask for what a node really exports."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from kvtide.node.exported import exported
from kvtide.node.spaces import Spaces
from tests.not_tested import lacks

RULES = Path(__file__).parents[2] / "deploy" / "alerts-node.yml"
NUMBERS = dict.fromkeys(("up_s", "memory_bytes", "connections", "connections_max", "refused", "closed"), 0)
TOLD = dict.fromkeys(("epoch", "kvtide", "protocol", "policy"), "")


def test_every_name_in_a_rule_is_a_metric_of_a_node() -> None:
    status = {**NUMBERS, **TOLD, "engines": [], **Spaces(1, lambda _: None).status()}
    names = {family.name + ("_total" if family.type == "counter" else "") for family in exported(status)}
    asked = set(re.findall(r"kvtide_node_\w+", RULES.read_text()))
    assert len(asked) > 5
    assert asked <= names


def test_prometheus_takes_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        lacks("the dashboard and the alerts", "`apt-get install prometheus`")
    checked = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)  # noqa: S603 (our own)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "5 rules found" in checked.stdout

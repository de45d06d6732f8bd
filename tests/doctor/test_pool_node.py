"""The doctor looks at the node that a configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtide.doctor import pool_node
from kvtide.doctor.asked import Asked
from kvtide.doctor.base import Health
from kvtide.doctor.checkup import all_checks
from kvtide.doctor.pool_node import check_pool_node
from kvtide.node import client as client_module
from kvtide.node.credentials import Credentials
from tests.doctor.support import machine
from tests.node.test_node import node


def test_a_node_that_answers_is_well_and_one_of_somebody_else_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_node, "SILENCE_S", 60.0)  # a busy machine may need more than two seconds
    with node(tmp_path / "node.sock"):
        found = check_pool_node(tmp_path / "node.sock")
        assert found.health is Health.OK
        assert "0 engines, 1 MiB of 1 MiB free" in found.found
        monkeypatch.setattr(client_module, "credentials_of", lambda _: Credentials(1, 54321, frozenset()))
        found = check_pool_node(tmp_path / "node.sock")
    assert found.health is Health.BAD
    assert "is of user 54321" in found.found
    assert "--group" in found.advice


def test_a_node_that_is_not_there_is_only_a_warning(tmp_path: Path) -> None:
    found = check_pool_node(tmp_path / "node.sock")
    assert found.health is Health.WARNING
    assert f"kvtide node --memory SIZE --socket {tmp_path / 'node.sock'}" in found.advice


@pytest.mark.parametrize(
    ("extra", "is_looked_at"), [({"node": "/run/node.sock"}, True), ({}, False), ({"node": 7}, False)]
)
def test_it_is_looked_at_where_the_configuration_names_one(
    tmp_path: Path, extra: dict[str, object], is_looked_at: bool
) -> None:
    names = [check.name for check in all_checks(machine(tmp_path), Asked(given=True, extra=extra))]
    assert ("node" in names) == is_looked_at

"""The dashboards are ones that Grafana draws as they were meant. That queries have data is tested on real servers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.deploy.prometheus_server import DEPLOY

DASHBOARDS: dict[str, dict[str, Any]] = {
    name: json.loads((DEPLOY / name).read_text()) for name in ("grafana.json", "grafana-node.json")
}
METRICS = {"grafana.json": "vllm:", "grafana-node.json": "kvtide_node_"}
"""How the names of what is drawn begin."""
COLUMNS = 24
DRAWN = [(name, panel) for name, board in DASHBOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
all_dashboards = pytest.mark.parametrize("name", DASHBOARDS)


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    """Return what a panel covers."""
    at = panel["gridPos"]
    return {(at["x"] + column, at["y"] + line) for column in range(at["w"]) for line in range(at["h"])}


@all_dashboards
def test_panels_have_ids_of_their_own_and_lie_beside_each_other_in_order(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        own = cells(panel)
        assert not own & covered, panel["title"]
        assert max(column for column, _ in own) < COLUMNS, panel["title"]
        covered |= own
    places = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in panels]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "panel"), DRAWN, ids=lambda value: value if isinstance(value, str) else value["title"]
)
def test_a_panel_asks_the_chosen_source_for_the_chosen_servers_and_names_what_it_draws(
    name: str, panel: dict[str, Any]
) -> None:
    queries = panel["targets"]
    assert len({query["refId"] for query in queries}) == len(queries)
    for query in queries:
        selectors = re.findall(METRICS[name] + r"\w+(\{[^}]*\})?", query["expr"])
        assert selectors
        assert all('instance=~"$instance"' in selector for selector in selectors)
        assert query["legendFormat"]
    assert all(asked["datasource"] == SOURCE for asked in (panel, *queries))
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["options"]["legend"]["showLegend"]


@all_dashboards
def test_every_variable_that_is_used_can_be_chosen(name: str) -> None:
    given = {variable["name"] for variable in DASHBOARDS[name]["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARDS[name])))
    assert used == given == {"datasource", "instance"}


def test_dashboards_can_be_there_at_the_same_time() -> None:
    assert len({board["uid"] for board in DASHBOARDS.values()}) == len(DASHBOARDS)

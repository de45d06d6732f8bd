"""The dashboard is one that Grafana draws as it was meant. That its queries have data is tested on a real server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "deploy" / "grafana.json").read_text())
COLUMNS = 24
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    """Return what a panel covers."""
    at = panel["gridPos"]
    return {(at["x"] + column, at["y"] + line) for column in range(at["w"]) for line in range(at["h"])}


def test_panels_have_ids_of_their_own_and_lie_beside_each_other_in_order() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    covered: set[tuple[int, int]] = set()
    for panel in PANELS:
        own = cells(panel)
        assert not own & covered, panel["title"]
        assert max(column for column, _ in own) < COLUMNS, panel["title"]
        covered |= own
    places = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in PANELS]
    assert places == sorted(places)


@pytest.mark.parametrize("panel", DRAWN, ids=lambda panel: panel["title"])
def test_a_panel_asks_the_chosen_source_for_the_chosen_servers_and_names_what_it_draws(panel: dict[str, Any]) -> None:
    queries = panel["targets"]
    assert len({query["refId"] for query in queries}) == len(queries)
    for query in queries:
        selectors = re.findall(r"vllm:\w+(\{[^}]*\})?", query["expr"])
        assert selectors
        assert all('instance=~"$instance"' in selector for selector in selectors)
        assert query["legendFormat"]
    assert all(asked["datasource"] == SOURCE for asked in (panel, *queries))
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["options"]["legend"]["showLegend"]


def test_every_variable_that_is_used_can_be_chosen() -> None:
    given = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD)))
    assert used == given == {"datasource", "instance"}

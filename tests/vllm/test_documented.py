"""docs/users/vllm.md says what there is: every option with its default, every metric, every reason."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kvtide.core import NotLoaded, NotStored
from kvtide.core.metrics import Gauges, Metrics
from kvtide.core.reasons import NotSunk
from kvtide.vllm import prometheus, stats
from kvtide.vllm.options import DEFAULT_HOST, ConnectorOptions

PAGE = (Path(__file__).parents[2] / "docs" / "users" / "vllm.md").read_text()


def rows(title: str) -> list[list[str]]:
    """Return the cells of all tables of a section."""
    section = re.split(r"^## ", PAGE.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]


def test_every_option_has_a_row() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows("Options") if row[0].startswith("`")}
    assert documented.keys() == ConnectorOptions.model_fields.keys()
    assert DEFAULT_HOST in documented["host"]


def test_every_metric_has_a_row() -> None:
    documented = set()
    for row in rows("Metrics"):
        for name in re.findall(r"`([^`]*)`", row[0]):
            documented.add(re.sub(r"\{.*\}|_total$", "", name.replace("…_", "vllm:kvtide_")).removesuffix("_total"))
    gauges = {prometheus.GAUGE_NAMES.get(name, name) for name in prometheus.GAUGES}
    known = prometheus.COUNTERS.keys() | gauges | prometheus.HISTOGRAMS.keys()
    assert documented == {prometheus.PREFIX + name for name in known}


@pytest.mark.parametrize("reasons", [NotLoaded, NotStored, NotSunk])
def test_every_reason_is_explained(reasons: type[NotLoaded | NotStored | NotSunk]) -> None:
    explained = set(re.findall(r"`(\w+)`", PAGE.split("## When hits are low\n", 1)[1].split("\n## ", 1)[0]))
    assert {reason.value for reason in reasons} <= explained


def test_every_number_of_the_core_is_told_and_is_a_metric() -> None:
    by_reason: dict[str, Any] = {
        "not_stored": Counter([NotStored.RESET]),
        "not_loaded": Counter([NotLoaded.RESET]),
        "not_sunk": Counter([NotSunk.RESET]),
    }
    counted = {field.name for field in fields(Metrics)}
    told = stats._counts(Metrics(**by_reason))
    assert told.keys() == {f"{name}/reset" if name in by_reason else name for name in counted}
    assert {name for name in counted if prometheus.COUNTERS[name].labels} == by_reason.keys()
    assert {field.name for field in fields(Gauges)} <= prometheus.GAUGES.keys()

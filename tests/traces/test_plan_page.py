"""The page of a plan in words: what it says, that it needs nothing else, that names stay text."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from dataclasses import replace
from html import unescape
from importlib.resources import files
from urllib.parse import unquote

import pytest

from kvtide.traces.plan import PlanResult
from kvtide.traces.plan_page import plan_page
from kvtide.traces.plan_report import reasons
from kvtide.traces.prices import GIB
from kvtide.traces.rates import Sourced
from kvtide.traces.workloads import Workload
from kvtide.units import percent_text, seconds_text, size_text
from tests.traces.support_plan import plan

TAKEN = {
    "load_bytes_per_s": Sourced(54.9e9, "measured", "one large copy"),
    "gpu_hour_dollars": Sourced(3.5, "given", ""),
}


@pytest.fixture(scope="module")
def result() -> PlanResult:
    return plan(Workload("mixture", 300), policies=("lru", "prefix", "forecast"), device_bytes=10 * GIB)


def data_of(page: str) -> dict[str, object]:
    data: dict[str, object] = json.loads(page.split('id="data">')[1].split("</script>", maxsplit=1)[0])
    return data


def test_names_from_outside_are_text_and_never_markup(result: PlanResult) -> None:
    evil = Sourced(1.0, "given", "</li><script>alert(2)</script>")
    named = replace(result, curves={**result.curves, "</script><script>alert(3)": result.curves["lru"]})
    page = plan_page(named, "</title><script>alert(1)</script>{{data}}", {**TAKEN, "overhead_s": evil})
    assert "<script>alert" not in page
    assert page.count('{"sizes"') == 1
    assert "<h1>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;{{data}}</h1>" in page


def test_the_page_asks_for_nothing_and_may_not(result: PlanResult) -> None:
    page = plan_page(result, "a trace", TAKEN)
    assert not re.search(r"\ssrc=|@import|url\(|href=\"(?!data:)", page)
    assert "default-src 'none'" in page
    assert len(page) < 200_000


def test_it_says_what_to_buy_how_sure_that_is_and_why(result: PlanResult) -> None:
    chosen = result.recommendation
    assert chosen.host_bytes
    page = unescape(plan_page(result, "a trace", TAKEN))
    assert f"Buy {size_text(chosen.host_bytes)} of host memory</h2>" in page
    assert f"certainty: {chosen.certainty.level}</span>" in page
    assert all(f"<p>{reason}</p>" in page for reason in reasons(result))
    assert f"<dd>{percent_text(chosen.added_share)}</dd>" in page
    assert page.count("(recommended)") == 1


def test_where_none_is_to_be_bought_it_says_so_and_marks_the_row_without() -> None:
    nothing = plan(Workload("mixture", 40), policies=("prefix",), device_bytes=900 * GIB)
    assert not nothing.recommendation.host_bytes
    page = plan_page(nothing, "a trace", TAKEN)
    assert "Buy no host memory</h2>" in page
    assert "none (recommended)</th>" in page
    assert (data_of(page)["chosen"], data_of(page)["chosen_text"]) == (None, "none")


def test_the_table_and_the_csv_have_every_number(result: PlanResult) -> None:
    page = plan_page(result, "a trace", TAKEN)
    table = re.findall(r'data-label="([^"]+)">([^<]+)<', page)
    for policy, points in result.curves.items():
        shown = [text for name, text in table if name == policy]
        assert shown == ["0.0%", *(percent_text(point.added_share) for point in points)]
    times = [result.ttft_without_s, *result.ttft_s]
    assert [text for name, text in table if name == "mean TTFT"] == list(map(seconds_text, times))
    file = unquote(page.split('href="data:text/csv;charset=utf-8,')[1].split('"')[0])
    rows = list(csv.DictReader(io.StringIO(file)))
    assert [float(row["ttft_s"]) for row in rows] == times
    assert [float(row["lru_added_share"]) for row in rows[1:]] == [one.added_share for one in result.curves["lru"]]
    assert [float(row["host_gib"]) * GIB for row in rows[1:]] == [one.host_bytes for one in result.curves["lru"]]


def test_the_footer_has_each_rate_with_its_source(result: PlanResult) -> None:
    footer = plan_page(result, "a trace", TAKEN).split("<footer")[1].split("</footer>")[0]
    assert re.findall("<li>(.*?)</li>", footer) == [
        "load: 54.9 GB/s (measured: one large copy)",
        "a GPU: $3.50 per hour (given)",
    ]


def test_errors_and_admission_are_explained_where_they_are_and_only_there(result: PlanResult) -> None:
    assert "±" not in plan_page(result, "a trace", TAKEN)
    uncertain = [replace(point, error=0.012) for point in result.curves["forecast"]]
    sampled = replace(result, curves={**result.curves, "forecast": uncertain})
    page = plan_page(sampled, "a trace", TAKEN, "second-use")
    assert re.search(r"\d% ± 1\.2<", page)
    assert "± is the standard error of samples." in page
    assert "prompt tokens, admission second-use<" in page


def test_the_main_curve_is_known_between_the_sizes_and_goes_through_them(result: PlanResult) -> None:
    data = data_of(plan_page(result, "a trace", TAKEN))
    fine, sizes, policies = data["fine"], data["sizes"], data["policies"]
    assert isinstance(fine, list)
    assert isinstance(sizes, list)
    assert isinstance(policies, list)
    assert len(fine) > 10 * len(sizes)
    assert [share for _, share in fine] == sorted(share for _, share in fine)
    assert [dict(fine)[size] for size in sizes] == pytest.approx(policies[1]["shares"])
    assert [policy["fine"] for policy in policies] == [False, True, False]


def test_what_was_vendored_is_what_was_published() -> None:
    folder = files("kvtide.traces").joinpath("page", "uplot")
    sums = re.findall(r"^ +([0-9a-f]{64})  (\S+)$", folder.joinpath("README.md").read_text(), re.MULTILINE)
    assert len(sums) == 2
    for expected, name in sums:
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == expected


def test_the_licence_of_the_library_goes_with_every_copy(result: PlanResult) -> None:
    licence = files("kvtide.traces").joinpath("page", "uplot", "LICENSE").read_text()
    assert licence in plan_page(result, "a trace", TAKEN)

"""The page of a plan in a real browser: on a desk and on a phone, light and dark, by keyboard and by pointer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvtide.traces.plan import PlanResult
from kvtide.traces.plan_page import plan_page
from kvtide.traces.prices import GIB
from kvtide.traces.rates import Sourced
from kvtide.traces.workloads import Workload
from kvtide.units import percent_text, seconds_text, size_text
from tests.browser import DESK, PHONE, cut_off, page_of
from tests.traces.support_plan import plan

POLICIES = ("lru", "prefix", "arc", "s3fifo", "forecast")
TITLE = f"Host memory for <img src=x onerror=alert(1)>{'a-long-name-of-a-file' * 10}"
TAKEN = {"load_bytes_per_s": Sourced(54.9e9, "measured", "one large copy")}

PIXELS = """([id, name]) => {
  const canvas = document.querySelector(`#${id} canvas`), probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--" + name);
  probe.fillRect(0, 0, 1, 1);
  const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
  const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, columns = {};
  for (let i = 0; i < all.length; i += 4) {
    const column = i / 4 % canvas.width;
    if (all[i] == red && all[i + 1] == green && all[i + 2] == blue && all[i + 3] == 255)
      columns[column] = (columns[column] || 0) + 1;
  }
  return columns;
}"""
"""How many pixels of a chart have one of the page's colours, by column."""

ROWS = """([id, name]) => {
  const canvas = document.querySelector(`#${id} canvas`), probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--" + name);
  probe.fillRect(0, 0, 1, 1);
  const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data, rows = [];
  const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < all.length; i += 4)
    if (all[i] == red && all[i + 1] == green && all[i + 2] == blue) rows.push(Math.floor(i / 4 / canvas.width));
  return rows[rows.length - 1] - rows[0];
}"""
"""From the highest to the lowest pixel of a colour."""


@cache
def planned() -> PlanResult:
    result = plan(Workload("mixture", 300), policies=POLICIES, device_bytes=10 * GIB)
    sampled = [replace(point, error=0.012) for point in result.curves["forecast"]]
    return replace(result, curves={**result.curves, "forecast": sampled})


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "plan.html"
    file.write_text(plan_page(planned(), TITLE, TAKEN), encoding="utf-8")
    return file.as_uri()


@contextmanager
def opened(browser: Any, address: str, width: int = DESK, scheme: str = "light") -> Iterator[Any]:
    with page_of(browser, address, width, scheme) as page:
        page.wait_for_function("() => document.getElementById('readout').textContent")
        yield page


def pixels(page: Any, chart: str, colour: str) -> dict[int, int]:
    columns: dict[str, int] = page.evaluate(PIXELS, [chart, colour])
    return {int(column): count for column, count in columns.items()}


def wait_for(page: Any, chart: str, colour: str) -> None:
    """Wait until a curve of this colour is drawn."""
    page.wait_for_function(f"given => Object.keys(({PIXELS})(given)).length > 50", arg=[chart, colour])


def said(size: int, *policies: str) -> str:
    """What is read from the curves at a size."""
    points = {policy: planned().curves[policy][size] for policy in policies}
    added = ", ".join(f"{policy} adds {percent_text(point.added_share)}" for policy, point in points.items())
    first, without = seconds_text(planned().ttft_s[size]), seconds_text(planned().ttft_without_s)
    return f"{size_text(points[policies[0]].host_bytes)}: {added}; first token after {first} ({without} without)."


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_both_curves_are_drawn_and_nothing_is_cut_off(browser: Any, address: str, width: int, scheme: str) -> None:
    with opened(browser, address, width, scheme) as page:
        assert cut_off(page) == []
        for chart in ("gain", "ttft"):
            wide = page.evaluate(f"document.querySelector('#{chart} canvas').width")
            assert len(pixels(page, chart, "p0")) > wide / 2
            assert len(pixels(page, chart, "soft")) > 50  # numbers and titles of the axes
        assert page.inner_text("h1") == TITLE
        assert page.query_selector("img") is None


def words(browser: Any, address: str) -> dict[str, float]:
    """Return what is written in the charts, and how far down."""
    with opened(browser, address) as page:
        page.add_init_script("""
            window.written = [];
            const write = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (words, x, y, ...rest) {
              written.push([words, y]);
              write.call(this, words, x, y, ...rest);
            };""")
        page.reload()
        return dict(page.evaluate("written"))


def test_axes_have_titles_and_marks_have_words(browser: Any, address: str) -> None:
    written = words(browser, address)
    chosen, without = size_text(planned().recommendation.host_bytes), seconds_text(planned().ttft_without_s)
    assert written.keys() >= {
        "host memory, GiB (log scale)",
        "added, % of prompt tokens",
        "time to first token, ms",
        f"recommended: {chosen}",
        f"without host memory: {without}",
        f"{planned().recommendation.host_bytes // GIB}",
    }


def test_times_that_are_far_apart_are_drawn_on_a_scale_that_shows_them_all(browser: Any, tmp_path: Path) -> None:
    sizes = len(planned().ttft_s)
    far = replace(planned(), ttft_without_s=168.0, ttft_s=[5.0, *[2.5] * (sizes - 1)])
    file = tmp_path / "far.html"
    file.write_text(plan_page(far, TITLE, TAKEN), encoding="utf-8")
    written = words(browser, file.as_uri())
    assert written.keys() >= {"time to first token, s (log scale)", "1", "10", "100"}
    chosen = f"recommended: {size_text(far.recommendation.host_bytes)}"
    assert written["without host memory: 2.8 min"] > written[chosen] + 16  # not one over the other
    with opened(browser, file.as_uri()) as page:
        assert cut_off(page) == []
        tall = page.evaluate("document.querySelector('#ttft canvas').height")
        assert sum(pixels(page, "ttft", "p0").values()) > 100
        falls = page.evaluate(ROWS, ["ttft", "p0"])
        assert falls > tall / 20  # from 5 s to 2.5 s, where nothing takes 168 s but to be without memory


def test_what_is_recommended_is_marked_in_both_charts(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        for chart in ("gain", "ttft"):
            columns = pixels(page, chart, "mark")
            assert max(columns.values()) > 80  # an upright line, dashed


def test_dark_has_other_colours_and_follows_the_system_while_it_is_open(browser: Any, address: str) -> None:
    seen = []
    with opened(browser, address) as page:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            wait_for(page, "gain", "p0")
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            line = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--p0')")
            seen.append((paper, line))
    light, dark = seen
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_the_keyboard_reaches_everything_and_reads_the_curves(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        chosen = [point.host_bytes for point in planned().curves["prefix"]].index(planned().recommendation.host_bytes)
        slider = page.get_by_role("slider", name="Read the curves at")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "size"
        outline = page.evaluate("getComputedStyle(document.activeElement).outline")
        assert "solid 3px" in outline
        assert page.inner_text("#readout") == said(chosen, "prefix", *shown(page))
        page.keyboard.press("Home")
        assert page.inner_text("#readout") == said(0, "prefix", *shown(page))
        page.keyboard.press("ArrowRight")
        assert slider.get_attribute("aria-valuetext") == said(1, "prefix", *shown(page))
        reached = []
        for _ in POLICIES:
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate("(document.activeElement.closest('label') ?? document.activeElement).innerText")
            )
        assert [text.split()[0] for text in reached] == ["lru", "arc", "s3fifo", "forecast", "as"]


def shown(page: Any) -> list[str]:
    """Which policies are drawn besides the main one."""
    chosen: list[bool] = page.eval_on_selector_all("fieldset input", "boxes => boxes.map(box => box.checked)")
    return [policy for policy, checked in zip(POLICIES, chosen, strict=True) if checked and policy != "prefix"]


def test_another_policy_is_drawn_when_it_is_chosen(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        box = page.get_by_role("checkbox", name="s3fifo")
        box.uncheck()
        assert not pixels(page, "gain", "p3")
        box.focus()
        page.keyboard.press("Space")
        wait_for(page, "gain", "p3")
        assert "s3fifo adds" in page.inner_text("#readout")
        assert page.get_by_role("checkbox", name="prefix in the recommendation").is_disabled()


def test_pointing_at_a_chart_reads_the_nearest_size(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        for chart, size in (("gain", 0), ("ttft", len(planned().ttft_s) - 1)):
            box = page.query_selector(f"#{chart} .u-over").bounding_box()
            page.mouse.move(box["x"] + (3 if size == 0 else box["width"] - 3), box["y"] + box["height"] / 2)
            assert page.inner_text("#readout") == said(size, "prefix", *shown(page))


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_table_is_a_table_for_screen_readers_at_any_width(browser: Any, address: str, width: int) -> None:
    with opened(browser, address, width) as page:
        told = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    roles = Counter(node["role"]["value"] for node in told["nodes"] if not node["ignored"])
    rows = len(planned().ttft_s) + 1
    assert (roles["table"], roles["rowheader"], roles["cell"]) == (1, rows, rows * (len(POLICIES) + 1))


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_no_number_of_the_table_is_broken_into_lines(browser: Any, address: str, width: int) -> None:
    with opened(browser, address, width) as page:
        heights = page.eval_on_selector_all("td", "cells => cells.map(cell => cell.offsetHeight)")
        assert len(set(heights)) == 1
        assert heights[0] < 40


def test_a_window_that_is_made_narrow_cuts_nothing_off(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        page.set_viewport_size({"width": PHONE, "height": 800})
        page.wait_for_function("() => document.querySelector('#gain .uplot').offsetWidth < 400")
        assert cut_off(page) == []
        wait_for(page, "gain", "p0")


def test_one_size_that_nothing_is_added_at_is_drawn_as_well(browser: Any, tmp_path: Path) -> None:
    one = plan(Workload("mixture", 40), policies=("forecast",), device_bytes=900 * GIB, sizes=(3 * GIB,))
    file = tmp_path / "plan.html"
    file.write_text(plan_page(one, "one", TAKEN), encoding="utf-8")
    with opened(browser, file.as_uri()) as page:
        assert page.inner_text("#readout").startswith("3 GiB: forecast adds 0.0%")
        assert pixels(page, "gain", "p0")

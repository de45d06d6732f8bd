"""The page in a real browser: on a desk and on a phone, light and dark, by keyboard, while servers come and go."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser import DESK, PHONE, cut_off, page_of
from tests.top.fake import BUSY, KVTIDE, FakeServer, at_node, fake_server, grown, metrics

OFF: dict[str, float | dict[str, float]] = {"kvtide_tier_off": {'tier="disk",rank="0"': 1.0}}


@contextmanager
def top(*urls: str) -> Iterator[str]:
    """Run `kvtide top --web` on a free port; yield the address it prints."""
    command = [*KVTIDE, "top", *urls, "--interval", "0.2", "--web", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 (our own)
    try:
        assert process.stdout is not None
        found = re.match(r"(http://127\.0\.0\.1:\d+/) ", process.stdout.readline())
        assert found is not None, process.communicate(timeout=10)
        yield found[1]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "")
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def servers() -> Iterator[list[FakeServer]]:
    """Two servers, of which one has a tier that is off."""
    long_name = {"kvtide_tier_off": {'tier="/a/rather/long/path/of/a/disk/tier/that/fits/no/phone",rank="0"': 0.0}}
    with fake_server(metrics(**{**BUSY, **long_name})) as one, fake_server(metrics(**{**BUSY, **OFF})) as two:
        yield [one, two]


@pytest.fixture(scope="module")
def address(servers: list[FakeServer]) -> Iterator[str]:
    with top(*(server.url for server in servers)) as address:
        yield address


@contextmanager
def opened(browser: Any, address: str, width: int = DESK, scheme: str = "light") -> Iterator[Any]:
    """Open the page, and wait until it shows a server."""
    with page_of(browser, address, width, scheme) as page:
        page.wait_for_selector("section.up figure")
        yield page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_nothing_is_cut_off_at_any_width(browser: Any, address: str, width: int, scheme: str, tmp_path: Path) -> None:
    with opened(browser, address, width, scheme) as page:
        assert cut_off(page) == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(13, 17, 23)") == (scheme == "dark")
        page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_a_server_whose_node_is_away_says_so(browser: Any) -> None:
    with fake_server(at_node(0)) as server, top(server.url) as address, opened(browser, address) as page:
        text = page.inner_text("main")
        assert "the node is away: nothing is stored or loaded there" in text
        assert "host pool: AWAY at a node" in text
        assert "slots" not in text
        assert cut_off(page) == []


def test_the_page_shows_what_the_terminal_shows(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        text = page.inner_text("section:nth-of-type(1)")
        assert re.search(
            r"device\s+\S+\s+50\.0%\s+host\s+\S+\s+22\.5%\s+tiers\s+\S+\s+7\.5%\s+computed\s+\S+\s+20\.0%", text
        )
        assert "75.0% of 160 MiB, 160 slots" in text
        assert page.title() == "kvtide top"
        broken = page.inner_text("section:nth-of-type(2)")
        assert "tier disk is switched off on rank 0 after failures" in broken
        assert "OFF on rank 0" in broken
        assert "switched off" in page.inner_text("[role=status]")


def test_it_updates_itself_while_a_server_grows_goes_away_and_comes_back(browser: Any) -> None:
    with fake_server(metrics(**BUSY)) as server, top(server.url) as address, opened(browser, address) as page:
        server.text = metrics(**{**grown(BUSY, 2), "num_requests_running": 41})
        page.wait_for_function("() => document.body.innerText.includes('41 + 1')")
        server.stop()
        page.wait_for_selector("section.down")
        page.wait_for_function("() => document.querySelector('.alarms').innerText.includes('nobody listens at port')")
        server.text = metrics(**BUSY)
        server.start()
        page.wait_for_selector("section.up")
        page.wait_for_function("() => document.body.innerText.includes('restarted 1x')")


def test_where_nobody_asked_no_curve_is_drawn(browser: Any) -> None:
    """The keyboard's tests see curves of bytes, which are known to be 0; a share of nothing is not."""
    with fake_server(metrics(**BUSY)) as server, top(server.url) as address, opened(browser, address) as page:
        page.wait_for_function("() => document.querySelectorAll('#moved0 path').length == 2")
        assert page.locator("#hits0 path").count() == 0
        server.text = metrics(**grown(BUSY, 2))
        page.wait_for_function("() => document.querySelectorAll('#hits0 path').length > 0")


def test_a_level_that_brought_nothing_has_no_curve_over_those_below(browser: Any) -> None:
    none = {"kvtide_fetched_blocks_total": 0.0}
    before, after = ({**grown(BUSY, times), **none} for times in (1, 2))
    with fake_server(metrics(**before)) as server, top(server.url) as address, opened(browser, address) as page:
        page.wait_for_function("() => document.querySelectorAll('#moved0 path').length == 2")
        server.text = metrics(**after)
        page.wait_for_function("() => document.querySelectorAll('#hits0 path').length > 0")
        assert page.locator("#hits0 path[stroke='var(--host)']").count() > 0
        assert page.locator("#hits0 path[stroke='var(--tiers)']").count() == 0


def test_when_kvtide_top_ends_the_page_says_so(browser: Any, servers: list[FakeServer]) -> None:
    with top(servers[0].url) as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("section.up figure")
    page.wait_for_function("() => document.getElementById('when').textContent.includes('does not answer')")
    page.close()


def test_the_keyboard_reaches_everything_and_reads_curves(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        focused = "document.activeElement.id"
        readings = "document.querySelector('#moved1 path')?.getAttribute('d').split('L').length"
        page.wait_for_function(f"() => {readings} > 6")
        page.keyboard.press("Tab")
        assert page.evaluate(focused) == "pause"
        page.keyboard.press("Enter")
        assert page.inner_text("#pause") == "Go on"
        assert page.get_attribute("#pause", "aria-pressed") == "true"
        reached = []
        for _ in range(4):
            page.keyboard.press("Tab")
            reached.append(page.evaluate(focused))
        assert reached == ["hits0", "moved0", "hits1", "moved1"]
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        caption = "document.activeElement.parentElement.querySelector('figcaption').textContent"
        for _ in range(4):
            page.keyboard.press("ArrowLeft")
        assert page.evaluate(caption) == "1 s ago"  # five readings of 0.2 s
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        assert page.evaluate(caption) == "the last reading"
        page.focus("#pause")
        page.keyboard.press("Space")
        assert page.inner_text("#pause") == "Pause"


def test_what_has_the_focus_keeps_it_when_the_page_updates(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        page.focus("#moved0")
        page.evaluate("document.querySelector('section').dataset.old = 1")
        page.wait_for_function("() => !document.querySelector('section').dataset.old")
        assert page.evaluate("document.activeElement.id") == "moved0"


def test_what_servers_say_is_text_and_never_markup(browser: Any) -> None:
    evil = {"kvtide_not_loaded_total": {'reason="<img src=x onerror=alert(1)>"': 5.0}}
    with fake_server(metrics(**BUSY)) as server, top(server.url) as address, opened(browser, address) as page:
        server.text = metrics(**{**grown(BUSY, 2), **evil})
        page.wait_for_function("() => document.body.innerText.includes('<img src=x')")
        assert page.query_selector("img") is None

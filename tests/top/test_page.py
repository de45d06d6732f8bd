"""The page in a real browser: on a desk and on a phone, light and dark, by keyboard, while servers come and go."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tools.system_packages import is_here

from tests.not_tested import lacks
from tests.top.fake import BUSY, FakeServer, fake_server, grown, metrics

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
DESK, PHONE = 1280, 400
OFF: dict[str, float | dict[str, float]] = {"kvtide_tier_off": {'tier="disk",rank="0"': 1.0}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium without a window."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None or not is_here("libatomic.so.1"):  # the library is the driver's
        lacks("pages in a real browser", "`make test-core` brings it where there is an apt-get, else install Chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 (slow, and of no use without a browser)

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=str(Path(found).resolve()),
            args=["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
            chromium_sandbox=False,  # needs rights that containers do not give; it sees our own page only
            env={**os.environ, **fonts(Path(found).resolve())},
        )
        yield chromium
        chromium.close()


def fonts(program: Path) -> dict[str, str]:
    """Where a browser that was unpacked, not installed, finds letters, on a system that has none."""
    root = next((folder for folder in program.parents if (folder / "etc" / "fonts").is_dir()), None)
    return {} if root is None or Path("/etc/fonts/fonts.conf").exists() else {"FONTCONFIG_SYSROOT": str(root)}


@contextmanager
def top(*urls: str) -> Iterator[str]:
    """Run `kvtide top --web` on a free port; yield the address it prints."""
    command = [sys.executable, "-m", "kvtide", "top", *urls, "--interval", "0.2", "--web", "0"]
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
    """Open the page; check that it asks nobody else and raises nothing."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(address)
    page.wait_for_selector("section.up figure")
    yield page
    page.close()
    assert not wrong
    assert all(url.startswith((address, "data:")) for url in asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_nothing_is_cut_off_at_any_width(browser: Any, address: str, width: int, scheme: str, tmp_path: Path) -> None:
    with opened(browser, address, width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        wide = (
            "[...document.querySelectorAll('body *')].filter(node => node.getBoundingClientRect().right > innerWidth)"
        )
        assert page.evaluate(f"{wide}.map(node => node.outerHTML)") == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(13, 17, 23)") == (scheme == "dark")
        page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


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
        assert "nobody listens there" in page.inner_text(".alarms")
        server.text = metrics(**BUSY)
        server.start()
        page.wait_for_selector("section.up")
        page.wait_for_function("() => document.body.innerText.includes('restarted 1x')")


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
        page.wait_for_function("() => document.querySelectorAll('#hits0 path').length > 3")
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
        assert page.evaluate(caption) == "1 readings ago"
        page.keyboard.press("ArrowRight")
        assert page.evaluate(caption) == "0 readings ago"
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

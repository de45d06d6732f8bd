"""A real browser for tests of pages: the fixture `browser`, and pages that may raise nothing and ask nobody else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tools.system_packages import is_here

from tests.not_tested import lacks

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
DESK, PHONE = 1280, 400


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium without a window."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None or not is_here("libatomic.so.1"):  # the library is the driver's
        lacks("pages in a real browser", "`make test-core` brings it where there is an apt-get, else install Chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 (slow, and of no use without a browser)

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=str(Path(found).resolve()),
            args=["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
            chromium_sandbox=False,  # needs rights that containers do not give; it sees our own pages only
            env={**os.environ, **fonts(Path(found).resolve(), tmp_path_factory.mktemp("fonts"))},
        )
        yield chromium
        chromium.close()


def fonts(program: Path, folder: Path) -> dict[str, str]:
    """Say where a browser that was unpacked, not installed, finds letters, on a system that has none."""
    found = next((parent for parent in program.parents if (parent / "usr/share/fonts").is_dir()), None)
    if found is None or Path("/etc/fonts/fonts.conf").exists():
        return {}
    settings = folder / "fonts.conf"
    where = f"<dir>{found}/usr/share/fonts</dir><cachedir>{folder}</cachedir>"
    settings.write_text(f'<?xml version="1.0"?><fontconfig>{where}</fontconfig>')
    return {"FONTCONFIG_FILE": str(settings)}


@contextmanager
def page_of(browser: Any, address: str, width: int = DESK, scheme: str = "light") -> Iterator[Any]:
    """Open a page; check in the end that it asked nobody else and raised nothing."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(address)
    yield page
    page.close()
    assert not wrong
    assert all(url.startswith((address, "data:")) for url in asked)


def cut_off(page: Any) -> list[str]:
    """Return what lies beyond the right edge, or would have to be scrolled to."""
    wide = "[...document.querySelectorAll('body *')].filter(node => node.getBoundingClientRect().right > innerWidth)"
    found: list[str] = page.evaluate(f"{wide}.map(node => node.outerHTML)")
    scrolled = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return [*found, f"{scrolled} px wider than the window"] if found or scrolled else []

"""What was not tested: a line each at the end of a run, with what brings it. A plug-in of pytest for all our tests.

A test that lacks something calls `lacks`. Nobody is stopped by that, but in CI, where `--may-lack` names the only
things that may be missing: `--may-lack=` with nothing behind it is the strictest.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import pytest


def lacks(what: str, bring: str) -> NoReturn:
    """Skip this test, because something is missing; `bring` is the command, or the sentence, that brings it."""
    pytest.skip(f"{what}: {bring}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our two options."""
    parser.addoption("--may-lack", metavar="WHAT,...", help="fail if tests were skipped for want of anything else")
    parser.addoption("--not-tested", metavar="FILE", type=Path, help="write there what was not tested, too")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was not tested, and write it down."""
    lines = [
        f"not tested: {what} ({count} test{'s'[: count > 1]}). {bring}"
        for (what, bring), count in sorted(_lacking(terminalreporter).items())
    ]
    for line in lines:
        terminalreporter.write_line(line)
    if file := config.getoption("not_tested"):
        file.write_text("".join(f"{line}\n" for line in lines))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail where CI could have had what tests lacked."""
    config = session.config
    allowed, reporter = config.getoption("may_lack"), config.pluginmanager.get_plugin("terminalreporter")
    if allowed is None or reporter is None or exitstatus != pytest.ExitCode.OK:
        return
    if missing := sorted({what for what, _ in _lacking(reporter)} - set(allowed.split(","))):
        reporter.write_line(f"\nThese may not be missing here: {', '.join(missing)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _lacking(reporter: Any) -> Counter[tuple[str, str]]:
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", ())]
    return Counter((what, bring) for what, _, bring in (reason.partition(": ") for reason in reasons))

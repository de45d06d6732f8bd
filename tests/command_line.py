"""The command `kvtide`, run in this process."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from kvtide import cli, progress

FIRST_LINE_S = progress.FIRST_LINE_S
LONG_S = 600.0


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[object, str, str]:
    """Return the exit code, stdout and stderr.

    Without lines that say that it takes long, which anything may on a busy machine; tests of these set when they come.
    """
    first_line_s = LONG_S if progress.FIRST_LINE_S == FIRST_LINE_S else progress.FIRST_LINE_S
    with patch.object(progress, "FIRST_LINE_S", first_line_s):
        try:
            code: object = cli.main([str(word) for word in argv])
        except SystemExit as leaving:
            code = leaving.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def check_refused(capsys: pytest.CaptureFixture[str], argv: str, message: str) -> None:
    """Check that a command costs one line on stderr, and exit code 2."""
    code, out, err = run(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"kvtide: error: {message}")
    assert err.count("\n") == 1

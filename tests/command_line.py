"""The command `kvtide`, run in this process."""

from __future__ import annotations

import pytest

from kvtide import cli


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[object, str, str]:
    """Return the exit code, stdout and stderr."""
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

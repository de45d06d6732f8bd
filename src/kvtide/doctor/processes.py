"""Running other programs, of which nothing is left when they take too long."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence


def run_program(command: Sequence[str], timeout_s: float, text: str = "") -> tuple[int, str]:
    """Run a program with a text on its stdin; return its exit code and its stdout.

    Raises `OSError` if it cannot be started, and `TimeoutError` if it takes too long. Then it has been ended, with all
    that it had started itself.
    """
    process = subprocess.Popen(  # noqa: S603 - our own words, and no shell
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            output, _ = process.communicate(text, timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError(f"{command[0]} has not ended in {timeout_s:g} s") from None
    return process.returncode, output

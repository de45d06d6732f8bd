"""Every command by itself, in a process of its own: what a driver does with a wrong one may be to crash.

Run it first on a new driver or Triton: it names the command, and the driver's error.

    PYTHONPATH=src python -m pytest tests/gpu/test_issuing_first.py
"""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("how", ["in C", "--python"])
def test_each_command_does_what_it_should(how: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-m", "tests.gpu.issuing_steps", how]
    result = subprocess.run(command, timeout=240, check=False, capture_output=True, text=True)  # noqa: S603 - a file of ours
    told = result.stdout + result.stderr
    assert result.returncode == 0, told
    assert "\n0 of " in told, told

"""The Triton kernels against their numpy twins, in Triton's interpreter: here, because here is a torch."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_kernels_move_what_their_twins_move() -> None:
    # In a process of its own: whether kernels are interpreted is decided when they are imported.
    command = [sys.executable, "-W", "ignore", "-m", "tests.copy.cuda.interpret"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, timeout=300, check=False, capture_output=True, text=True)  # noqa: S603
    assert result.returncode == 0, result.stdout + result.stderr

"""Packing on a CPU, which needs numba: here, because vLLM brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent


@pytest.mark.parametrize("tests", ["copy/packing/check_compiled.py", "engine/test_packing.py"])
def test_compiled_packing_does_what_the_reference_does(tests: str) -> None:
    # In a process of its own: where numba is imported before vLLM, vLLM 0.32's CPU build does not start. It looks at
    # every object of every module, and does not understand one of llvmlite's.
    command = [sys.executable, "-m", "pytest", "-c", str(FOLDER / "pytest.ini"), "-W", "ignore", str(TESTS / tests)]
    result = subprocess.run(command, cwd=FOLDER.parents[1], timeout=300, check=False, capture_output=True, text=True)  # noqa: S603
    assert result.returncode == 0, result.stdout + result.stderr

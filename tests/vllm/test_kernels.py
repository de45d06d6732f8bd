"""The Triton kernels against their numpy twins, in Triton's interpreter: here, because here is a torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("program", ["interpret", "interpret_packing"])
def test_the_kernels_do_what_their_twins_do(program: str) -> None:
    run(program, TRITON_INTERPRET="1")


def test_compiled_the_packing_kernels_reach_memory_16_bytes_at_a_time(tmp_path: Path) -> None:
    run("compile_packing", TRITON_CACHE_DIR=str(tmp_path))


def run(program: str, **environment: str) -> None:
    # In a process of its own: whether kernels are interpreted is decided when they are imported.
    command = [sys.executable, "-W", "ignore", "-m", f"tests.copy.cuda.{program}"]
    environment = os.environ | environment
    result = subprocess.run(command, env=environment, timeout=300, check=False, capture_output=True, text=True)  # noqa: S603
    assert result.returncode == 0, result.stdout + result.stderr

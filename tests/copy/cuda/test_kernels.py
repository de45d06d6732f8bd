"""The Triton kernel against its numpy twin, in Triton's interpreter. Without torch and Triton the twin stands alone."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

MISSING = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}")
def test_the_kernel_moves_what_its_twin_moves() -> None:
    # In a process of its own: whether kernels are interpreted is decided when they are imported.
    command = [sys.executable, "-W", "ignore", "-m", "tests.copy.cuda.interpret"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, timeout=300, check=False, capture_output=True, text=True)  # noqa: S603
    if "only 0-dimensional arrays can be converted" in result.stderr:
        pytest.skip("the interpreter of this Triton does not work with this numpy")
    assert result.returncode == 0, result.stdout + result.stderr

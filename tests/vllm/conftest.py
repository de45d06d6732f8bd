"""These tests need vLLM's CPU build: `make test` runs them in an environment of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["*"]

IS_APART = "KVTIDE_TEST_IS_APART"

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # scheduler and engine in reach of the tests
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # copies and tests share the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that spin on a busy machine take ten times as long
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiles nothing, so no compiler is needed

if importlib.util.find_spec("vllm") is not None:
    from tests.not_tested import *  # noqa: F403 (pytest finds hooks and fixtures by name)
    from tests.vllm.fixtures import *  # noqa: F403


def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Run tests that are marked `apart` in a process of their own."""
    if pyfuncitem.get_closest_marker("apart") is None or IS_APART in os.environ:
        return None
    folder = Path(__file__).parent
    test = f"{pyfuncitem.path}::{pyfuncitem.nodeid.partition('::')[2]}"
    command = [sys.executable, "-m", "pytest", "-c", str(folder / "pytest.ini"), "-W", "ignore", test]
    environment = {**os.environ, IS_APART: "1"}
    done = subprocess.run(command, env=environment, cwd=folder.parents[1], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return True

"""Engines in a process of their own: worker processes and their environment are none of this one's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vllm.llm import Result

ROOT = Path(__file__).parents[2]


def run_elsewhere(module: str, *arguments: object, timeout_s: float = 300) -> Any:
    """Run a module of these tests; return the JSON of its last line."""
    command = [sys.executable, "-m", f"tests.vllm.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def results(said: Any) -> list[Result]:
    """Return what requests generated there."""
    return [Result(tuple(tokens), tuple(logprobs), 0) for tokens, logprobs in said["results"]]

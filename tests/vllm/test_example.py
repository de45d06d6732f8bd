"""The example for vLLM runs as it is, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm_offline.py"


def test_the_example_loads_a_prompt_that_the_device_has_evicted() -> None:
    result = subprocess.run(  # noqa: S603 (a command of ours)
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert "288 of 320 prompt tokens were not computed again" in result.stdout

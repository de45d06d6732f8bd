"""The programs in examples/ run as they are, and show what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SHOWS = {
    "embedded_engine": "ann 2: 19 of 211 prompt tokens computed",
    "events_and_metrics": "not loaded: 768 tokens, not_cached",
    "restart_from_disk": "384 of 400 tokens loaded",
}
IN_VLLM = {"vllm_offline"}
"""Run by tests/vllm/test_example.py."""


def test_every_example_is_run_by_a_test_and_named_in_their_list() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs == SHOWS.keys() | IN_VLLM
    text = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}.py`" in text for name in programs)


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_shows_what_it_says(name: str) -> None:
    result = subprocess.run(  # noqa: S603 (a command of ours)
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert SHOWS[name] in result.stdout

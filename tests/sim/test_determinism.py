"""The same seed gives the same log, byte for byte, on every Python."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from kvtide.sim.batch import run_seed
from tests.not_tested import lacks

SEEDS = 40
NODE_SEEDS = 10
SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = f"""
import hashlib, sys
from unittest.mock import MagicMock
# Other Pythons need not have these: no world calls them.
for absent in ("numpy", "numpy.typing", "pydantic", "pydantic.fields", "pydantic_core", "xxhash"):
    sys.modules[absent] = MagicMock()
sys.modules["pydantic"].BaseModel = object
from kvtide.sim.batch import run_seed
digest = hashlib.sha256()
for seed in range({SEEDS}):
    digest.update("\\n".join(run_seed(seed, {{}}, log=True).log).encode())
for seed in range({NODE_SEEDS}):
    digest.update("\\n".join(run_seed(seed, {{"node": "yes"}}, log=True).log).encode())
print(digest.hexdigest())
"""


@cache
def digest_here() -> str:
    digest = hashlib.sha256()
    for seed in range(SEEDS):
        digest.update("\n".join(run_seed(seed, {}, log=True).log).encode())
    for seed in range(NODE_SEEDS):
        digest.update("\n".join(run_seed(seed, {"node": "yes"}, log=True).log).encode())
    return digest.hexdigest()


def interpreter(version: str) -> str | None:
    """Find a Python of some version, also where pyenv keeps them."""
    candidates = [
        shutil.which(f"python{version}"),
        *glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")),
    ]
    for path in filter(None, candidates):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:  # noqa: S603 (a Python)
            return path
    return None


def test_a_seed_runs_the_same_way_twice() -> None:
    assert run_seed(7, {}, log=True).log == run_seed(7, {}, log=True).log


def test_writing_a_log_changes_nothing() -> None:
    assert run_seed(7, {}, log=True).steps == run_seed(7, {}).steps


def test_seeds_differ() -> None:
    assert run_seed(7, {}, log=True).log != run_seed(8, {}, log=True).log


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_python_writes_the_same_log(version: str) -> None:
    python = interpreter(version)
    if python is None:
        lacks("other Pythons", "Install Python 3.10 to 3.13, for example by pyenv.")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": "random"}
    command = [python, "-c", PROGRAM]
    ran = subprocess.run(command, capture_output=True, check=False, text=True, env=environment)  # noqa: S603 (ours)
    assert ran.stdout.strip() == digest_here(), f"{sys.version} and {version} differ: {ran.stderr}"

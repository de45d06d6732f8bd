"""Nothing is skipped in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
from tests.not_tested import lacks

def test_one():
    lacks("Redis", "`apt-get install redis-server`")

def test_two():
    lacks("Redis", "`apt-get install redis-server`")

def test_three():
    pass
"""
LINE = "not tested: Redis (2 tests). `apt-get install redis-server`"


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--may-lack=Redis,Valkey"], 0), (["--may-lack="], 1)])
def test_skipped_tests_are_named_and_fail_where_nothing_may_be_missing(
    tmp_path: Path, options: list[str], code: int
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    file = tmp_path / "lines"
    command = [sys.executable, "-m", "pytest", "-p", "tests.not_tested", f"--rootdir={tmp_path}", str(tmp_path)]
    command += [f"--not-tested={file}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
    assert done.returncode == code, done.stdout
    assert LINE in done.stdout.splitlines()
    assert file.read_text() == f"{LINE}\n"

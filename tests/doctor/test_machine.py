"""What checks read of a machine, and programs that end whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtide.doctor.machine import output_of
from kvtide.doctor.processes import run_program
from tests.doctor.support import machine
from tests.tiers.shared.servers import until

STARTS_ANOTHER = "sleep 300 & echo $! > {0}.new; mv {0}.new {0}; wait"


def test_the_output_of_a_program_is_what_it_prints_unless_it_fails_or_is_not_there() -> None:
    assert output_of(["sh", "-c", "echo well; echo noise >&2"]) == "well\n"
    assert output_of(["sh", "-c", "echo ill; exit 3"]) is None
    assert output_of(["no-such-program-at-all"]) is None


def test_a_program_gets_what_it_is_to_read_and_its_exit_code_is_told() -> None:
    assert run_program(["sh", "-c", "cat; exit 3"], 60, "said") == (3, "said")


def test_a_program_that_takes_too_long_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(TimeoutError, match="has not ended in 3 s"):
        run_program(["sh", "-c", STARTS_ANOTHER.format(pid_file)], 3)
    until(lambda: not runs(int(pid_file.read_text())))


def runs(pid: int) -> bool:
    """Say whether a process runs: one that nobody has asked for its exit code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_files_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    here = machine(tmp_path, {"proc/meminfo": "MemTotal:  16 kB\nHugePages_Total: 3\nOdd: kB\n", "sys/a": " text \n"})
    (tmp_path / "sys/b").write_bytes(b"\xff\xfe")
    assert (here.read("sys/a"), here.read("sys/b"), here.read("sys/c")) == ("text", None, None)
    assert [here.meminfo(name) for name in ("MemTotal", "HugePages_Total", "Odd", "Gone")] == [16384, 3, None, None]

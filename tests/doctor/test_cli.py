"""`kvtide doctor` as people and scripts run it: exit codes, JSON, widths, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from kvtide.doctor import checkup
from kvtide.doctor import cli as doctor_cli
from kvtide.doctor.asked import read_asked
from kvtide.doctor.base import Check, ok, warning
from kvtide.doctor.machine import Machine
from kvtide.doctor.rounds import run_checks
from tests.command_line import check_refused, run
from tests.doctor.support import FIXED_SEED, install_plugin, install_vllm
from tests.tiers.shared.servers import Server

ROOT = Path(__file__).parents[2]
OF_MACHINE = ["python", "vllm", "plugin", "config", "hash_seed", "gpu", "link", "memory", "pinning", "huge_pages"]
OF_MACHINE += ["numa", "clock"]
OF_DISK = ["disk_space", "disk_direct_io", "disk_speed"]
PASSWORD = "hunter2"  # noqa: S105 - of a server that lives for a test
SMALL = {"host": "1MiB"}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with a vLLM and the plug-in."""
    return install_plugin(install_vllm(tmp_path / "packages", source=FIXED_SEED))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def doctor(
    folder: Path, packages: Path | None, *arguments: str, columns: int = 80, stdout: IO[str] | int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process and a folder of its own."""
    path = os.pathsep.join(str(part) for part in (packages, ROOT / "src") if part is not None)
    return subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-m", "kvtide", "doctor", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "COLUMNS": str(columns),
            "VLLM_PLUGINS": "kvtide",
            "PYTHONUNBUFFERED": "",
        },
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_machine_that_may_serve_is_0_and_every_check_has_its_name(folder: Path, packages: Path) -> None:
    done = doctor(folder, packages, "--json", "--config", json.dumps(SMALL))
    found = json.loads(done.stdout)
    assert [check["name"] for check in found] == [*OF_MACHINE, *OF_DISK]
    assert {check["about"] for check in found[-3:]} == {"the working folder"}
    assert all(check["advice"] for check in found if check["health"] != "ok")
    assert not [check for check in found if check["health"] == "bad"]
    assert all(line.startswith("kvtide doctor: waiting for ") for line in done.stderr.splitlines())
    assert done.returncode == 0
    assert list(folder.iterdir()) == []


def test_all_tiers_of_a_configuration_are_looked_at_and_nothing_is_left(folder: Path, packages: Path) -> None:
    (folder / "disk").mkdir()
    with Server("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", password=PASSWORD) as server:
        tiers = [
            {"type": "disk", "path": str(folder / "disk"), "size": "1MiB"},
            {"type": "valkey", "url": f"unix://:{PASSWORD}@{server.socket}", "deadline_ms": 60_000},
            {"type": "valkey", "url": f"unix://:{PASSWORD}@{folder}/none"},
        ]
        (folder / "config.json").write_text(json.dumps({**SMALL, "tiers": tiers}))
        done = doctor(folder, packages, "--json", "--config", "config.json")
        assert server.raw.dbsize() == 0
    found = {(check["name"], check["about"]): check["health"] for check in json.loads(done.stdout)}
    expected = [(name, "") for name in OF_MACHINE] + [(name, "tiers[0]") for name in OF_DISK]
    expected += [(name, f"tiers[{index}]") for index in (1, 2) for name in ("valkey", "valkey_clock")]
    assert list(found) == expected
    assert found["valkey", "tiers[1]"] == "ok"
    assert found["valkey", "tiers[2]"] == "bad"
    assert done.returncode == 1
    assert PASSWORD not in done.stdout + done.stderr
    assert sorted(path.name for path in folder.rglob("*")) == ["config.json", "disk"]


@pytest.mark.parametrize("columns", [40, 80])
def test_the_text_fits_the_terminal_and_ends_with_what_comes_of_it(folder: Path, packages: Path, columns: int) -> None:
    done = doctor(folder, packages, "--config", json.dumps(SMALL), columns=columns)
    lines = done.stdout.splitlines()
    assert all(len(line) <= columns or len(line.split()) == 1 for line in lines)
    assert " ".join(lines).endswith("may serve")
    assert done.returncode == 0


def test_a_folder_that_does_not_answer_is_a_finding_and_the_others_are_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(checkup, "read_wanted", lambda asked: release.wait(60))
    checks = list(checkup.all_checks(Machine(), read_asked('{"tiers": [{"type": "disk"}]}')))
    config, clock = (check for check in checks if check.name in ("config", "clock"))
    hurried = [replace(config, deadline_s=0.05), replace(clock, deadline_s=60)]
    found = [result.finding.found for result in run_checks(hurried, lambda check: None, patience_s=0.01)]
    release.set()
    assert found[0] == "no answer in 0.05 s"
    assert "steps of" in found[1]


def test_who_reads_no_more_ends_it_with_the_exit_code_of_all_commands(folder: Path, packages: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = doctor(folder, packages, stdout=closed)
    assert done.returncode == 141
    assert all(line.startswith("kvtide doctor: waiting for ") for line in done.stderr.splitlines())


def test_something_that_keeps_it_from_serving_is_1(folder: Path, packages: Path) -> None:
    done = doctor(folder, packages, "--config", '{"hots": "1GiB"}')
    assert done.returncode == 1
    assert "bad     config: a server would refuse hots='1GiB'" in done.stdout
    assert 'did you mean "host"?' in " ".join(done.stdout.split())


def test_a_request_that_cannot_be_understood_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, "doctor --config /nowhere/config.json", "--config='/nowhere/config.json': expected JSON")
    check_refused(capsys, "doctor --confg {}", "No such option '--confg'.")


def test_help_says_what_is_done_and_what_the_exit_codes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "--help")
    assert code == 0
    assert "Exit codes: 0 may serve" in out
    assert "leaves nothing" in " ".join(out.split())


def test_warnings_do_not_fail_and_slow_checks_are_told_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_cli, "all_checks", lambda *_: [Check("thing", lambda: warning("so", "do"))])
    monkeypatch.setattr(doctor_cli, "run_checks", partial(run_checks, patience_s=60))
    code, out, err = run(capsys, "doctor")
    assert (code, err) == (0, "")
    assert out == "warning thing: so\n        -> do\n0 ok, 1 warning, 0 problems: may serve\n"
    doctor_cli._tell_slow(Check("thing", lambda: ok(""), "tiers[0]", deadline_s=25))
    assert capsys.readouterr().err == "kvtide doctor: waiting for thing of tiers[0], 25 s at most\n"

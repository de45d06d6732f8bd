"""A command line like others: what people know from other programs holds here too."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from rich.console import Console
from rich.table import Table

from kvtide import cli
from kvtide.errors import ConfigError
from kvtide.output import Output
from kvtide.progress import LinesNowAndThen
from kvtide.traces.cli_common import rate
from tests.command_line import run
from tests.top.fake import KVTIDE as HEARS_CTRL_C

KVTIDE = (sys.executable, "-m", "kvtide")
SMALL = ("--requests", "60")
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}
"""As people have it: what is written may stay in memory until the end."""


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    python = f"{sys.executable} -m kvtide"
    return subprocess.run(  # noqa: S602 (our own words, and pipes are what is tested)
        command.replace("kvtide", python),
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=120,
        env={**BUFFERED, **environment},
        check=False,
    )


# ---------------------------------------------------------------------- errors by the names that were written


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        ("plan --prefill -1", "--prefill='-1': expected a number above 0"),
        ("plan --decode soon", "--decode='soon': expected a number above 0"),
        ("plan --link fast", "--link='fast': expected bytes per second, such as \"25GB/s\""),
        ("plan --link 25GB/h", "--link='25GB/h': expected bytes per second"),
        ("plan --device -5G", "--device='-5G': expected \"none\", or a size in bytes above 0"),
        ("simulate --log", "--log: expected --seed N with it"),
        ("plan --requests 0", "--requests=0: expected a whole number of at least 1"),
        ("replay --gpus -2", "--gpus=-2: expected a whole number of at least 1"),
        ("replay --policy prefxi", "--policy='prefxi': expected one of prefix, lru"),
        ("trace make --workload chast", "--workload='chast': expected one of"),
        ("demo --device-blocks 3", "--device-blocks=3: expected at least"),
        ("demo --ranks 8", "--ranks=8: expected a divisor"),
    ],
)
def test_errors_have_the_name_that_was_written(capsys: pytest.CaptureFixture[str], argv: str, option: str) -> None:
    code, out, err = run(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"kvtide: error: {option}")


def test_a_mistyped_word_gets_the_one_that_may_have_been_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert 'did you mean "simulate"?' in run(capsys, "simulte")[2]
    assert "'--admission'" in run(capsys, "plan", "--admision", "all")[2]
    assert 'did you mean "prefix"?' in run(capsys, "replay", "--policy", "prefxi")[2]
    assert 'did you mean "lru"?' in run(capsys, "plan", "--policies", "lur")[2]
    assert 'did you mean "h100"?' in run(capsys, "plan", "--gpu", "H10")[2]
    assert 'did you mean "no-flush"?' in run(capsys, "simulate", "--canary", "no-flsh")[2]
    assert 'did you mean "mode"?' in run(capsys, "check", '{"moed": "lazy"}')[1]


@pytest.mark.parametrize("word", ["stop", "not", "load", "one"])
def test_a_word_that_is_far_from_all_gets_no_hint(capsys: pytest.CaptureFixture[str], word: str) -> None:
    _, _, err = run(capsys, "node", word)
    assert "did you mean" not in err
    assert "known are clear, status" in err
    assert "did you mean" not in run(capsys, "check", json.dumps({"tiers": [{"type": "redis"}], word: 1}))[1]


# ---------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    "command",
    [
        "kvtide trace make --requests 3000 --workload chats",
        f"kvtide plan {' '.join(SMALL)} --policies lru",
        "kvtide simulate --seed 7 --log",
        "kvtide --help",
    ],
)
def test_who_reads_only_the_beginning_sees_no_error(command: str) -> None:
    done = shell(f"set -o pipefail; {command} | head -n 1")
    assert done.returncode in (0, 141)
    assert "rror" not in done.stderr
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "command", [("plan", *SMALL, "--policies", "lru"), ("simulate", "--seed", "7"), ("trace", "make"), ("check", "{}")]
)
def test_who_reads_nothing_ends_it_as_others_end(command: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(  # noqa: S603 (our own)
            [*KVTIDE, *command],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
            env=BUFFERED,
        )
    assert done.returncode == 141
    assert "rror" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_ctrl_c_ends_a_simulation_with_130_and_what_it_has() -> None:
    command = [*HEARS_CTRL_C, "simulate", "--seeds", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 (ours)
        assert process.stderr is not None
        assert "seeds" in process.stderr.readline()  # the first line of progress
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert " violations" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command", ["trace make --requests 500", "plan --requests 60 --policies lru", "simulate --seed 7 --log", "check {}"]
)
def test_a_full_disk_is_said_in_one_line(command: str) -> None:
    done = shell(f"kvtide {command} > /dev/full 2> >(grep -v 'no trace was given' >&2)")
    assert done.returncode == 2
    assert done.stderr == "kvtide: error: No space left on device\n"


def test_a_full_disk_for_errors_does_not_change_the_exit_code() -> None:
    assert shell("kvtide plna 2> /dev/full").returncode == 2


@pytest.mark.parametrize("closed", ["2>&-", "<&-"])
def test_a_stream_that_is_closed_and_not_needed_is_not_missed(closed: str) -> None:
    done = shell(f"kvtide check {{}} {closed}")
    assert (done.returncode, done.stdout) == (0, "a server would take it\n")


def test_that_results_have_no_place_to_go_is_said_in_one_line() -> None:
    done = shell("kvtide check {} >&-")
    assert (done.returncode, done.stderr) == (2, "kvtide: error: standard output is closed\n")


def test_who_is_told_to_end_leaves_nothing_half_done(tmp_path: Path) -> None:
    command = [*KVTIDE, "trace", "make", "--requests", "100000000", str(tmp_path / "trace.jsonl")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 (our own)
        assert process.stderr is not None
        assert "requests" in process.stderr.readline()  # the first line of progress
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "")
    assert list(tmp_path.iterdir()) == []


def test_who_is_told_to_end_takes_its_workers_along() -> None:
    command = [*KVTIDE, "simulate", "--seeds", "1000000", "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 (ours)
        assert process.stderr is not None
        assert "seeds" in process.stderr.readline()
        process.terminate()
        process.communicate(timeout=60)  # ends when nobody has the pipes open any more
    assert process.returncode == 143


def test_any_error_of_the_system_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*_: object) -> None:
        raise OSError(24, "Too many open files", "/some/file")

    monkeypatch.setattr("kvtide.demo.cli.compare_modes", too_many)
    assert run(capsys, "demo") == (2, "", "kvtide: error: Too many open files: /some/file\n")


# ---------------------------------------------------------------------- values as people write them


@pytest.mark.parametrize(
    ("written", "size"),
    [("64G", 64 << 30), ("64GiB", 64 << 30), ("64Gi", 64 << 30), ("64gb", 64 * 10**9), ("1.5T", 3 << 39), ("512", 512)],
)
def test_sizes_are_read_as_people_write_them(written: str, size: int) -> None:
    from kvtide.traces.cli_common import size as read  # noqa: PLC0415

    assert read("--host", written) == size


def test_rates_and_gpus_are_read_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    for gpu in ("H100", "h100", "NVIDIA H100 80GB HBM3"):
        code, out, _ = run(capsys, "replay", *SMALL, "--gpu", gpu, "--host", "64G", "--link", "25GB/s")
        assert code == 0
        assert "H100" in out


@pytest.mark.parametrize("written", ["25GB/s", "25gb/s", "25 GB/s", "25GBps", "25000000000"])
def test_rates_are_bytes(written: str) -> None:
    assert rate("--link", written) == 25 * 10**9


@pytest.mark.parametrize("written", ["200Gb/s", "200Gbit/s", "200Gbps", "200 Gib/s", "200Gb", "1Pb/s"])
def test_bits_are_not_taken_for_bytes(written: str) -> None:
    with pytest.raises(ConfigError, match="these are bits"):
        rate("--link", written)


def test_help_says_what_sizes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("demo", "plan", "replay"):
        _, out, _ = run(capsys, command, "--help")
        assert "K, M, G, T and P count by 1024 as KiB to PiB do, KB to PB by 1000" in " ".join(out.split())


# ---------------------------------------------------------------------- completion


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_is_shown_and_installed(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, _ = run(capsys, "--show-completion", name)
    assert code == 0
    assert "_KVTIDE_COMPLETE" in out
    assert run(capsys, "--install-completion", name)[0] == 0
    assert run(capsys, "--install-completion", name)[0] == 0
    written = [path for path in tmp_path.rglob("*kvtide*") if path.is_file()]
    assert [path.read_text() for path in written] == [out.removesuffix("\n")]
    assert name != "zsh" or (tmp_path / ".zshrc").read_text().count("compinit") == 2


def test_the_shell_is_known_by_its_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "function _kvtide_completion" in run(capsys, "--show-completion")[1]
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert run(capsys, "--show-completion")[2].startswith("kvtide: error: --show-completion='tcsh': expected one of")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("kvtide si", "simulate"),
        ("kvtide replay --pol", "--policy"),
        ("kvtide replay --policy fo", "forecast"),
        ("kvtide plan --gpu h1", "h100"),
        ("kvtide simulate --canary no-fl", "no-flush"),
        ("kvtide tier ver", "verify"),
    ],
)
def test_a_shell_is_told_what_may_come_next(words: str, completed: str) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_KVTIDE_COMPLETE": "bash_complete"}
    assert f"plain,{completed}\n" in shell("kvtide", **asked).stdout


# ---------------------------------------------------------------------- help


def examples() -> Iterator[list[str]]:
    """Yield the words of each example in the help of all commands, without what is said about it."""
    groups = [cli.KVTIDE, *(cli.KVTIDE.get_command(click.Context(cli.KVTIDE), name) for name in cli.MODULES)]
    groups += [inner for found in groups if isinstance(found, click.Group) for inner in found.commands.values()]
    for found in groups:
        assert found is not None
        for line in (found.epilog or "").splitlines():
            command = re.match(r"  (?:zcat \S+ \| )?kvtide (\S.*?)(?:  .*)?$", line)
            if command is not None and "COMMAND" not in line:
                yield shlex.split(command[1].partition(" > ")[0])


def test_every_example_in_the_help_is_understood() -> None:
    """Words are read as the command reads them; nothing is run."""
    known = list(examples())
    assert len(known) > 40
    for words in known:
        assert all(json.loads(word) for word in words if word.startswith("{"))
        found: click.Command | None = cli.KVTIDE
        context = click.Context(cli.KVTIDE, info_name="kvtide")
        while isinstance(found, click.Group) and not words[0].startswith("-"):  # some do something by themselves
            name, *words = words  # noqa: PLW2901 (the rest of the words)
            found = found.get_command(context, name)
            assert found is not None, name
            context = click.Context(found, context, info_name=name)
        assert found is not None
        found.make_context(found.name, words)


# ---------------------------------------------------------------------- start


def test_help_imports_no_command() -> None:
    program = (
        "import sys, kvtide.cli; kvtide.cli.main(['--help']); "
        "print(sorted(set(sys.modules) & {'numpy', 'rich', 'pydantic', 'kvtide.sim.cli', 'kvtide.traces.cli_plan'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    assert done.stdout.endswith("\n[]\n")


def test_the_list_of_commands_is_that_of_the_modules() -> None:
    assert list(cli.MODULES) == list(cli.SUMMARIES)


# ---------------------------------------------------------------------- tables and progress


@pytest.mark.parametrize(
    "command",
    [
        ("plan", *SMALL),
        ("replay", *SMALL),
        ("trace", "stats", *SMALL),
        ("demo", "--conversations=2", "--turns=2", "--prompt-tokens=48", "--turn-tokens=9", "--device-blocks=12"),
    ],
)
def test_tables_fit_forty_columns_or_become_lists(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    code, out, _ = run(capsys, *command)
    assert code == 0
    assert "…" not in out
    for line in out.splitlines():
        assert len(line) <= 40 or not re.search("[│┃━─]", line), line


def test_a_list_says_of_each_row_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("size", "hit\nratio", "", title="all of it")
    table.add_row("1GiB", "50%", "[bold]x[/]")
    Output(width=14).table(table)
    assert capsys.readouterr().out == "all of it\nsize: 1GiB\n  hit ratio: \n50%\n  x\n"
    wide = Console(width=40)
    assert wide.measure(table).maximum <= 40
    Output(width=40).table(table)
    assert "┃" in capsys.readouterr().out


def test_without_a_terminal_a_simulation_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinesNowAndThen, "is_time", lambda _: True)
    assert run(capsys, "simulate", "--seeds", "30")[2].count(" seeds  ") == 2

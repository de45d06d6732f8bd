"""The command line: results on stdout, one line for an error, and exit codes that can be relied on."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import click
import pytest

import kvtide
from kvtide import cli
from kvtide.demo import Comparison, DemoSettings, compare_modes
from kvtide.demo import cli as demo_cli
from kvtide.demo.compare import OnTurn
from kvtide.errors import CopyError
from tests.command_line import check_refused, run

SMALL_SIZES = {
    "conversations": "3",
    "turns": "3",
    "prompt-tokens": "48",
    "turn-tokens": "9",
    "output-tokens": "4",
    "concurrency": "1",
    "device-blocks": "12",
    "block-tokens": "8",
    "host": "8MiB",
}
SMALL = ["demo", *(f"--{name}={value}" for name, value in SMALL_SIZES.items())]
NUMBERS = {
    "prefill_tokens",
    "loaded_tokens",
    "hit_ratio",
    "ttft_ms_p50",
    "ttft_ms_p95",
    "copy_s",
    "stored_bytes",
    "wall_s",
}


def test_help_names_the_commands_and_leaving_the_command_out_is_asking_for_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert "demo" in out
    assert run(capsys) == (code, out, err)


def _commands(command: click.Command, so_far: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return all commands, and theirs."""
    found = [so_far]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += _commands(inner, (*so_far, name))
    return found


@pytest.mark.parametrize("command", _commands(cli.KVTIDE), ids=" ".join)
def test_every_command_has_help_with_examples_and_a_summary(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(" ".join(["Usage: kvtide", *command]))
    assert re.search(rf"^Examples:\n  kvtide {' '.join(command)}", out, re.MULTILINE)
    _, above, _ = run(capsys, *command[:-1], "--help")
    assert not command or re.search(rf"^  {command[-1]} +\w", above, re.MULTILINE)


@pytest.mark.parametrize("command", _commands(cli.KVTIDE), ids=" ".join)
def test_every_command_says_its_exit_codes(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *command, "--help")
    assert re.search(r"^Exit codes: 0 \w.*, 2 \w", out, re.MULTILINE | re.DOTALL)


def test_help_of_the_demo_has_examples_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "demo", "--help")
    assert code == 0
    assert "Examples:" in out
    assert "(default: 256MiB)" in out


def test_the_version_is_the_one_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"kvtide {kvtide.__version__}\n", "")


def test_json_is_one_object_on_stdout_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["identical_outputs"] is True
    for mode in ("none", "eager", "lazy", "unlimited"):
        assert set(shown[mode]) == NUMBERS
        assert 0 <= shown[mode]["hit_ratio"] <= 1
    assert shown["settings"]["conversations"] == 3
    assert "==> kvtide, eager: 9 turns" in err


def test_the_demo_shows_blocks_as_they_are_and_packed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, "--host", "320KiB", "--packing", "--json")
    shown = json.loads(out)
    assert (code, shown["identical_outputs"]) == (0, True)
    assert shown["packed"]["loaded_tokens"] > shown["plain"]["loaded_tokens"]
    assert shown["settings"]["host"] == "320KiB", "it was given"
    assert "==> kvtide, packed: 9 turns" in err


def test_the_table_is_the_result_and_progress_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, "--hybrid", "--window", "16", "--ranks", "2", "--device-blocks", "24")
    assert code == 0
    assert "Every output token is the same" in out
    assert "==>" not in out
    assert "==>" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("demo --turns 1", "--turns=1: expected a whole number of at least 2"),
        ("demo --turns many", "--turns='many': expected a whole number of at least 2"),
        ("demo --conversations=-3", "--conversations=-3: expected a whole number of at least 1"),
        ("demo --host lots", "--host='lots': expected a size in bytes above 0"),
        ("demo --host 1KiB", "--host='1KiB': expected at least one block"),
        ("demo --device-blocks 3", "--device-blocks=3: expected at least 74"),
        ("demo --ranks 8", "--ranks=8: expected a divisor of kv_heads=4"),
        ("demo --policy mru", "--policy='mru': expected one of prefix, lru"),
        ("demo --window 64", "--window=64: expected to be used with --hybrid"),
        ("demo --packing --node", "--packing: expected not to be used with --node"),
        ("demo --hybrid --window 1", "--window=1: expected a whole number of at least 2"),
        ("demo --hosts 1GiB", "No such option '--hosts'. Did you mean '--host'? (see kvtide demo --help)"),
        ("demo --turn 3", "No such option '--turn'. Did you mean '--turns'? (see kvtide demo --help)"),
        ("--verbose", "No such option '--verbose'. (see kvtide --help)"),
        ("top localhost --onec", "No such option '--onec'. Did you mean '--once'? (see kvtide top --help)"),
        ("tier clear /tmp --force", "No such option '--force'. (see kvtide tier clear --help)"),
        ("demo --seed", "Option '--seed' requires an argument. (see kvtide demo --help)"),
        ("dmeo", "no such command: 'dmeo'; did you mean \"demo\"? known are advise, check, demo,"),
        ("tier inpsect /tmp", "no such command: 'inpsect'; did you mean \"inspect\"? known are clear,"),
    ],
)
def test_a_bad_option_costs_one_line_on_stderr_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: str, message: str
) -> None:
    check_refused(capsys, argv, message)


def test_outputs_that_differ_give_exit_code_1_and_say_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(settings: DemoSettings, on_turn: OnTurn) -> Comparison:
        comparison = compare_modes(settings, on_turn)
        comparison.results["eager"].replies[0][1] = (-1,)
        return comparison

    monkeypatch.setattr(demo_cli, "compare_modes", broken)
    code, out, err = run(capsys, *SMALL, "--json")
    assert code == 1
    assert json.loads(out)["identical_outputs"] is False
    assert "kvtide: error: OUTPUTS DIFFER" in err
    assert "eager: conversation 0, turn 1" in err


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (CopyError("no such device"), 2)])
def test_what_ends_a_run_early_leaves_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int
) -> None:
    def interrupted(*args: object) -> None:
        raise raised

    monkeypatch.setattr(demo_cli, "compare_modes", interrupted)
    got, out, err = run(capsys, *SMALL)
    assert (got, out) == (code, "")
    assert "Traceback" not in err


def test_python_m_kvtide_is_the_command() -> None:
    command = [sys.executable, "-m", "kvtide", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 (our own)
    assert re.fullmatch(r"kvtide \d+\.\d+\.\d+(\.dev\d+)?(\+\S+)?\n", done.stdout)

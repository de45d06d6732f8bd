from __future__ import annotations

import json
import re

import pytest
from click.exceptions import Exit

from kvtide.cli import run as run_command
from kvtide.errors import ConfigError
from kvtide.sim import batch, cli
from kvtide.sim.batch import Caught
from kvtide.sim.options import Overrides
from kvtide.sim.simulation import Found
from kvtide.sim.tally import Tally


def run(*arguments: str) -> int:
    return run_command(["simulate", *arguments])


def output(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_many_seeds_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "30", "--first", "0", "--json") == 0
    result = json.loads(output(capsys))
    assert result["seeds"] == 30
    assert result["steps"] > 300
    assert result["steps_per_s"] > 0
    assert result["violations"] == []
    assert result["faults"]["failed_copy"] > 0
    assert result["reasons"]["not_loaded.not_cached"] > 0


def test_many_seeds_for_people_say_where_they_began_and_what_never_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "2", "--first", "5") == 0
    text = output(capsys)
    assert "seeds from 5 on" in text
    assert "never happened:" in text


def test_fresh_seeds_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "1") == 0
    assert re.search(r"seeds from \d+ on", output(capsys))


def test_one_seed_prints_its_world_and_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seed", "7", "--log") == 0
    text = output(capsys)
    assert "device blocks" in text
    assert "arrives" in text
    assert "nothing found" in text


def test_a_violation_names_invariant_step_seed_and_command_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seed", "0", "--canary", "F5") == 1
    text = output(capsys)
    assert re.search(r"I1 violated at step \d+ of seed 0: ", text)
    assert "reproduce: kvtide simulate --seed 0 --canary F5 --log" in text


def test_the_seed_in_the_help_shows_a_missing_fence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit):
        run("--help")
    (seed,) = re.findall(r"--canary no-load-fence --seed (\d+)", output(capsys))
    assert run("--canary", "no-load-fence", "--seed", seed) == 1


def test_canaries_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--canary", "F1", "--first", "0", "--json") == 0
    (entry,) = json.loads(output(capsys))["canaries"]
    assert (entry["fault"], entry["invariant"]) == ("F1", "I6")
    assert entry["caught_after"] >= 1


def test_canaries_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--canary", "F8", "--first", "0") == 0
    assert len(re.findall(r"^F8 +\d+  I\d", output(capsys), re.MULTILINE)) == 3


def test_a_canary_that_survives_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "run_canary", lambda canary, *_: Caught(canary, None))
    assert run("--canary", "F1") == 1
    assert "survived" in output(capsys)


def test_a_canary_that_is_broken_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "run_canary", lambda canary, *_: Caught(canary, 1, 0, "I8", "a mistake", broken=True))
    assert run("--canary", "F1") == 1
    assert "BROKEN: expected I6" in output(capsys)


def test_shrinking_finds_a_smaller_world_and_the_command_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seed", "0", "--canary", "F5", "--shrink", "--json") == 1
    result = json.loads(output(capsys))
    assert result["invariant"] == "I1"
    assert len(result["world"]["requests"].split("+")) == 1
    assert result["world"]["faults"] == "none"
    arguments = result["reproduce"].split()[2:]
    assert run(*arguments) == 1
    assert "I1 violated" in output(capsys)


def test_there_is_nothing_to_shrink_in_a_world_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seed", "7", "--shrink") == 0
    assert "nothing to shrink" in output(capsys)


def test_a_short_soak_runs_on_two_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--soak", "1s", "--jobs", "2", "--json") == 0
    assert json.loads(output(capsys))["seeds"] > 0


def test_many_seeds_end_with_what_was_found_and_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_chunk = batch.run_chunk

    def wrong(first: int, count: int, overrides: Overrides) -> Tally:
        tally = run_chunk(first, count, overrides)
        tally.violations, tally.found = 1, [Found(7, 5, "I1", "it is wrong")]
        return tally

    monkeypatch.setattr(batch, "run_chunk", wrong)
    assert run("--seeds", "25", "--first", "0", "--jobs", "1") == 1
    assert output(capsys).splitlines()[-2:] == [
        "I1 violated at step 5 of seed 7: it is wrong",
        "  reproduce: kvtide simulate --seed 7 --log",
    ]


def test_an_interrupted_run_prints_what_it_has_and_exits_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_chunk = batch.run_chunk

    def interrupted(first: int, count: int, overrides: Overrides) -> Tally:
        if first:
            raise KeyboardInterrupt
        return run_chunk(first, count, overrides)

    monkeypatch.setattr(batch, "run_chunk", interrupted)
    assert run("--seeds", "100", "--first", "0") == 130
    assert "25 seeds" in output(capsys)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seed", "seven"], "a whole number"),
        (["--seed", "-1"], "a whole number"),
        (["--seed", "9" * 5000], "at most 18 digits"),
        (["--seeds", "0"], "--seeds=0: expected a whole number of at least 1"),
        (["--seeds", "1e3"], "--seeds='1e3': expected a whole number of at least 1"),
        (["--first", "x"], "a whole number"),
        (["--jobs", "0"], "--jobs=0: expected a whole number of at least 1"),
        (["--canary", "F99"], "known are all, F1, F2"),
        (["--canary", "no-load-fenc"], 'expected a known fault or guard; did you mean "no-load-fence"? known are'),
        (["--canary", "F8", "--seed", "1"], "failed-load-served, failed-store-visible"),
        (["--canary", "F1", "--seeds", "5"], "no --canary"),
        (["--soak", "soon"], "90s, 10m or 2h"),
        (["--soak", "0s"], "90s, 10m or 2h"),
        (["--log"], "--seed N"),
        (["--shrink"], "--seed N"),
        (["--seed", "1", "--seeds", "2"], "no --seed"),
        (["--seed", "1", "--log", "--shrink"], "no --shrink"),
        (["--world", "color=red"], "known are"),
        (["--seed", "1", "--world", "ranks=0"], "from 1 to 4"),
        (["--world", "mode=lasy"], "--world='mode=lasy': expected one of eager, lazy; did you mean \"lazy\"?"),
    ],
)
def test_bad_input_is_refused_with_what_is_possible(arguments: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        run(*arguments)


def test_a_world_that_cannot_be_is_refused_before_anything_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError):
        run("--world", "mode=lasy")
    assert not output(capsys)

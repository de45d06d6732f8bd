"""What the demo says is what happened."""

from __future__ import annotations

import io
import json

from rich.console import Console

from kvtide.demo import Comparison, RunResult
from kvtide.demo.compare import RUNS
from kvtide.demo.report import as_json, sentences, table
from kvtide.demo.workload import Tokens
from tests.demo.support import tiny


def made_up(*, eager_ms: float = 10.0, eager_loaded: int = 500) -> Comparison:
    """A comparison with round numbers: without offloading a follow-up turn waits 100 ms."""
    results = {}
    for run in RUNS:
        replies: list[list[Tokens]] = [[(1, 2)] * 3 for _ in range(3)]
        result = RunResult(run, replies, [100.0] * 6, prompt_tokens=1000, prefill_tokens=1000)
        if run in ("eager", "lazy"):
            result.ttft_ms = [eager_ms] * 6
            result.loaded_tokens = result.reused_tokens = eager_loaded
        results[run] = result
    return Comparison(tiny(), results)


def printed(comparison: Comparison) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table(comparison))
    return out.getvalue()


def test_the_table_has_a_row_for_each_run_and_fits_on_80_columns() -> None:
    lines = printed(made_up()).splitlines()
    rows = [line.split() for line in lines if line.split() and line.split()[0] in RUNS]
    assert [row[0] for row in rows] == list(RUNS)
    assert rows[2] == ["eager", "1,000", "500", "50%", "10.0", "10.0", "0.00", "yes"]


def test_the_sentence_tells_how_much_sooner_a_turn_starts() -> None:
    assert "10.0 times sooner (10 ms instead of 100 ms" in sentences(made_up())


def test_no_gain_is_not_called_one() -> None:
    assert "no sooner" in sentences(made_up(eager_ms=99.0))
    assert "Nothing was loaded" in sentences(made_up(eager_loaded=0))


def test_a_difference_is_told_in_the_table_the_sentence_and_the_json() -> None:
    comparison = made_up()
    comparison.results["lazy"].replies[2][1] = (1, 3)
    assert "NO" in printed(comparison)
    assert "OUTPUTS DIFFER" in sentences(comparison)
    assert "lazy: conversation 2, turn 1" in sentences(comparison)
    assert as_json(comparison)["identical_outputs"] is False


def test_the_json_object_can_be_written_and_has_all_numbers() -> None:
    shown = json.loads(json.dumps(as_json(made_up())))
    assert set(shown) == {*RUNS, "identical_outputs", "settings"}
    assert shown["eager"]["hit_ratio"] == 0.5
    assert shown["eager"]["ttft_ms_p50"] == 10.0
    assert shown["identical_outputs"] is True

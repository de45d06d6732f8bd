"""Conversations of the benchmark have the lengths that a definition of vLLM's own benchmark says."""

from __future__ import annotations

import json
import runpy
import statistics
from pathlib import Path
from random import Random
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
WORKLOAD = runpy.run_path(str(BENCHMARKS / "chat_workload.py"))
DEFINITION: dict[str, Any] = {
    "num_conversations": 3,
    "prompt_input": {
        "num_turns": {"distribution": "constant", "value": 4},
        "common_prefix_num_tokens": {"distribution": "constant", "value": 50},
        "prefix_num_tokens": {"distribution": "uniform", "min": 40, "max": 60},
        "num_tokens": {"distribution": "uniform", "min": 55, "max": 59},
    },
    "prompt_output": {"num_tokens": {"distribution": "constant", "value": 7}},
}


def conversations(path: Path, scale: float = 1.0) -> Any:
    return WORKLOAD["conversations"](WORKLOAD["from_definition"](path, scale), 1, 512, spacing_s=0.1, think_s=0.1)


def written(folder: Path, **of_input: Any) -> Path:
    path = folder / "definition.json"
    path.write_text(json.dumps({**DEFINITION, "prompt_input": {**DEFINITION["prompt_input"], **of_input}}))
    return path


def draws(**distribution: Any) -> list[int]:
    draw = Random(1)
    return [WORKLOAD["draw_number"](draw, distribution) for _ in range(20_000)]


def test_a_definition_of_vllms_own_benchmark_gives_the_lengths(tmp_path: Path) -> None:
    everything = conversations(written(tmp_path))
    assert [len(turns) for turns in everything] == [2, 2, 2], "four messages are two questions and their answers"
    assert len({tuple(turns[0].tokens[:50]) for turns in everything}) == 1, "all begin alike"
    assert len({tuple(turns[0].tokens) for turns in everything}) == 3
    for turns in everything:
        assert 40 + 55 <= len(turns[0].tokens) <= 60 + 59, "what all begin with is a part of the first question"
        assert 55 <= len(turns[1].tokens) <= 59
        assert {turn.answer_tokens for turn in turns} == {7}


def test_each_question_has_its_answer(tmp_path: Path) -> None:
    odd = written(tmp_path, num_turns={"distribution": "constant", "value": 5})
    assert [len(turns) for turns in conversations(odd)] == [3, 3, 3]


def test_conversations_may_have_nothing_in_common(tmp_path: Path) -> None:
    path = tmp_path / "definition.json"
    asked = {name: what for name, what in DEFINITION["prompt_input"].items() if name != "common_prefix_num_tokens"}
    path.write_text(json.dumps({**DEFINITION, "prompt_input": asked}))
    assert len({tuple(turns[0].tokens[:2]) for turns in conversations(path)}) == 3


def test_a_scale_makes_everything_shorter_but_the_number_of_turns(tmp_path: Path) -> None:
    whole, part = (conversations(written(tmp_path), scale) for scale in (1.0, 0.2))
    assert [len(turns) for turns in part] == [len(turns) for turns in whole]
    assert 0.18 < WORKLOAD["all_tokens"](part) / WORKLOAD["all_tokens"](whole) < 0.25


def test_the_definition_here_is_one_that_vllms_script_takes() -> None:
    definition = json.loads((BENCHMARKS / "multi_turn.json").read_text())
    assert definition["filetype"] == "generate_conversations"
    assert definition["text_files"]
    everything = conversations(BENCHMARKS / "multi_turn.json")
    assert len(everything) == 24
    assert 6 <= min(map(len, everything)) <= max(map(len, everything)) <= 9
    assert 60_000 < WORKLOAD["all_tokens"](everything) < 100_000


@pytest.mark.parametrize(
    ("distribution", "mean"),
    [
        ({"distribution": "lognormal", "average": 1000}, 1000),
        ({"distribution": "lognormal", "average": 1000, "median_ratio": 0.5}, 1000),
        ({"distribution": "lognormal", "mean": 3.0, "sigma": 0.1}, 20.2),
        ({"distribution": "poisson", "alpha": 10}, 10),
        ({"distribution": "uniform", "min": 10, "max": 20}, 15),
    ],
)
def test_distributions_have_the_mean_that_they_say(distribution: dict[str, Any], mean: float) -> None:
    assert statistics.fmean(draws(**distribution)) == pytest.approx(mean, rel=0.05)


def test_the_median_of_a_lognormal_one_is_what_vllms_is() -> None:
    assert statistics.median(draws(distribution="lognormal", average=1000)) == pytest.approx(850, rel=0.05)


def test_a_zipf_one_is_that_of_numpy_and_is_cut_where_it_says() -> None:
    found = draws(distribution="zipf", alpha=2.0, max=100)
    assert found.count(1) / len(found) == pytest.approx(6 / 3.14159**2, rel=0.05)
    assert max(found) == 100
    assert min(found) == 1


def test_an_unknown_distribution_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="a distribution 'normal': expected constant"):
        draws(distribution="normal")

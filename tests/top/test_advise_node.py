"""Advice where a node keeps host memory: to a server that uses one, and to the node itself."""

from __future__ import annotations

import json

import pytest

from kvtide.top.advice import Advice
from kvtide.top.advise import advise
from kvtide.top.figures import figures
from kvtide.top.reading import parse
from kvtide.top.state import state
from tests.command_line import run
from tests.top.fake import at_node, fake_server


def advice(text: str, seconds: float | None = None) -> list[Advice]:
    reading = parse(text)
    return advise(figures(reading.counters, seconds, reading.counters), state(reading))


# ---------------------------------------------------------------------- a server


def test_a_server_whose_node_is_away_is_told_to_start_it() -> None:
    (only,) = advice(at_node(0, away_tokens=7_000))
    assert (only.kind, only.do.startswith("Start the node")) == ("repair", True)
    assert "70,000 tokens were computed because of that" in only.because
    assert only.numbers == {"engines_away": 1, "node_away_tokens": 70_000}


def test_it_is_said_how_many_engines_are_without_it() -> None:
    (only,) = advice(at_node(1, 0, 0))
    assert "away for 2 of 3 engines" in only.because


def test_a_server_with_its_node_is_told_to_ask_it_about_memory() -> None:
    (only,) = advice(at_node(1))
    assert only.kind == "nothing"
    assert "ask its node" in only.do
    assert "Host memory is the node's" in only.because
    assert "full" not in only.because, "the server does not know"
    assert "pool_fill" not in only.numbers


def test_blocks_that_are_not_admitted_are_no_reason_where_nobody_knows_how_full_memory_is() -> None:
    lost = '# TYPE vllm:kvtide_not_stored counter\nvllm:kvtide_not_stored_total{engine="0",reason="not_admitted"} 9e9\n'
    assert [each.kind for each in advice(at_node(1) + lost)] == ["nothing"]


@pytest.mark.parametrize(
    ("why", "do"),
    [("node_away", "why the node was away"), ("node_late", "overloaded"), ("leases_full", "more memory")],
)
def test_what_the_node_did_not_bring_is_said_with_its_share(why: str, do: str) -> None:
    (only,) = advice(at_node(1, away_tokens=1_000).replace("node_away", why))
    assert (only.kind, do in only.do) == ("node", True)
    assert only.because.startswith("10.0% of prompt tokens were computed because ")
    assert only.numbers == {f"{why}_share": 0.1}
    assert [each.kind for each in advice(at_node(1, away_tokens=100).replace("node_away", why))] == ["nothing"]


# ---------------------------------------------------------------------- a node


def a_node(
    lookups: int = 100, *, cached: int = 400, evicted: int = 0, found: int = 5_000, missing: int = 5_000, more: str = ""
) -> str:
    """Return what a node with two models says; engines use one of them, and the other one is full."""
    labels = 'namespace="n",model="org/small"'
    counters = {"lookups": lookups, "asked_tokens": found + missing, "found_tokens": found, "evicted_blocks": evicted}
    gauges = {"slots": 1000, "slots_ready": 1000, "slots_cached": cached, "namespace_engines": 1}
    lines = ["# TYPE kvtide_node_build_info gauge", 'kvtide_node_build_info{epoch="e"} 1']
    for name, count in counters.items():
        lines += [f"# TYPE kvtide_node_{name} counter", f"kvtide_node_{name}_total{{{labels}}} {count}"]
    lines += ["# TYPE kvtide_node_not_loaded counter"]
    lines += [f'kvtide_node_not_loaded_total{{{labels},reason="not_cached"}} {missing}']
    for name, value in gauges.items():
        kept = 0 if name == "namespace_engines" else 1000
        lines += [f"# TYPE kvtide_node_{name} gauge", f"kvtide_node_{name}{{{labels}}} {value}"]
        lines += [f'kvtide_node_{name}{{namespace="k",model="org/kept"}} {kept}']
    return "\n".join([*lines, more, ""])


def tiers(up: int) -> str:
    line = 'kvtide_node_tier_up{{namespace="{}",tier="disk"}} {}'
    return "\n".join(["# TYPE kvtide_node_tier_up gauge", line.format("n", up), line.format("k", 0)])


def test_look_ups_are_the_requests_of_a_node() -> None:
    (only,) = advice(a_node())
    assert (only.kind, only.do) == ("nothing", "Leave it as it is.")
    assert "No model fills more than 40.0% of its memory" in only.because
    assert "50.0% of what was looked up was not there" in only.because


def test_a_node_whose_memory_is_full_and_loses_blocks_probably_needs_more_or_a_tier() -> None:
    found = advice(a_node(cached=990, evicted=500), seconds=100.0)
    assert [each.kind for each in found] == ["memory", "tier"]
    assert "--memory" in found[0].do
    assert "--tier" in found[1].do
    assert "The memory of org/small is full, and it evicted 500 blocks: one stays for 3.33 min" in found[0].because
    assert found[0].numbers == {"fill": 0.99, "evicted_blocks": 500, "found_share": 0.5, "not_cached_share": 0.5}


def another_model(cached: int, evicted: int, found: int, missing: int) -> str:
    """Return what the same node says of a third model, which engines use, too."""
    labels = 'namespace="o",model="org/other"'
    counters = {"asked_tokens": found + missing, "found_tokens": found, "evicted_blocks": evicted}
    gauges = {"slots": 100, "slots_ready": 100, "slots_cached": cached, "namespace_engines": 1}
    counters = {f"{name}_total{{{labels}}}": count for name, count in counters.items()}
    counters[f'not_loaded_total{{{labels},reason="not_cached"}}'] = missing
    lines = [f"kvtide_node_{series} {count}" for series, count in counters.items()]
    for name, value in gauges.items():
        lines += [f"# TYPE kvtide_node_{name} gauge", f"kvtide_node_{name}{{{labels}}} {value}"]
    return "\n".join(lines)


def test_of_several_models_the_one_that_loses_blocks_is_named_with_its_own_numbers() -> None:
    found = advice(a_node(cached=1000, more=another_model(96, 50, found=3_000, missing=1_000)), seconds=100.0)
    assert [each.kind for each in found] == ["memory", "tier"]
    assert "The memory of org/other is full, and it evicted 50 blocks: one stays for 3.33 min" in found[0].because
    assert found[0].numbers == {"fill": 0.96, "evicted_blocks": 50, "found_share": 0.75, "not_cached_share": 0.25}


def test_what_one_model_finds_is_no_reason_for_more_memory_of_another_one() -> None:
    (only,) = advice(a_node(cached=990, evicted=500, found=0, missing=5_000, more=another_model(10, 0, 9_000, 0)))
    assert only.kind == "nothing"
    assert "The memory of org/small evicts, and nothing shows" in only.because
    (only,) = advice(a_node(cached=1000, more=another_model(96, 50, found=0, missing=5_000)))
    assert "The memory of org/other evicts, and nothing shows" in only.because


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (a_node(cached=990), "nothing was evicted"),
        (a_node(cached=990, evicted=500, found=100, missing=9_900), "nothing shows that what it evicts is asked for"),
        (a_node(cached=990, evicted=500, found=9_900, missing=100), "nothing shows that what it evicts is asked for"),
        (a_node(cached=990, evicted=500, more=tiers(1)), "still in the tiers"),
    ],
)
def test_a_full_node_is_left_alone_without_evidence(text: str, why: str) -> None:
    (only,) = advice(text)
    assert only.kind == "nothing"
    assert why in only.because
    assert only.numbers


def test_a_tier_of_a_node_that_engines_cannot_use_is_said_before_all_else() -> None:
    (only,) = advice(a_node(cached=990, evicted=500, more=tiers(0)))
    assert (only.kind, "Look after tier disk of the node" in only.do) == ("repair", True)
    assert "it is still being opened" in only.because


def test_what_is_one_engine_s_alone_has_no_tiers_and_says_nothing_about_them() -> None:
    private = 'kvtide_node_{}{{namespace="p",model="org/reset"}} {}'
    more = [private.format(name, 1) for name in ("slots", "slots_ready", "slots_cached", "namespace_engines")]
    (only,) = advice(a_node(more="\n".join([*more, tiers(1)])))
    assert only.kind == "nothing"


def test_few_look_ups_say_nothing_and_no_option_that_was_given_is_suggested() -> None:
    (only,) = advice(a_node(5))
    assert only.kind == "unknown"
    assert only.do == "Look again when there is more traffic."
    assert only.because.startswith("5 look-ups of 10,000 tokens are too few")
    (only,) = advice(a_node(5), seconds=60.0)
    assert "--since-start" in only.do


def test_the_command_says_what_it_has_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(a_node()) as node:
        code, out, err = run(capsys, "advise", node.url, "--since-start")
        assert (code, err) == (0, "")
        assert out.startswith("100 look-ups of 10,000 tokens since the node was started.\n")
        _, out, _ = run(capsys, "advise", node.url, "--since-start", "--json")
    assert [each["kind"] for each in json.loads(out)["advice"]] == ["nothing"]

"""The demo with a node: what one engine has computed, a second and a restarted one find; and nothing is left behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kvtide.demo.at_node import RUNS, compare_at_node
from kvtide.demo.report import sentences
from tests.command_line import check_refused
from tests.demo.support import tiny
from tests.left_behind import Before
from tests.node.real_node import RealNode, be_patient

patient = pytest.fixture(autouse=True)(be_patient)


def processes() -> set[str]:
    """Return the children of this process."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        found.update((task / "children").read_text().split())
    return found


@pytest.mark.parametrize("own", [True, False], ids=["of its own", "that is there"])
def test_other_engines_find_what_the_first_has_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2] / "src")]))
    before, children = Before(), processes()
    told: list[tuple[str, int]] = []
    if own:
        comparison = compare_at_node(tiny(), "", lambda run, done: told.append((run, done)))
    else:
        with RealNode(tmp_path / "other.sock") as node:
            comparison = compare_at_node(tiny(), str(node.path), lambda run, done: told.append((run, done)))
    results = comparison.results
    assert comparison.identical_outputs
    assert tuple(results) == RUNS
    assert told == [(run, done) for run in RUNS for done in range(10)]
    first, second, restarted = (results[run] for run in ("first", "second", "restarted"))
    assert first.prefill_tokens < results["none"].prefill_tokens
    for other in (second, restarted):
        assert other.prefill_tokens < first.prefill_tokens / 2
        assert other.loaded_tokens > first.loaded_tokens
    assert f"the second one {second.prefill_tokens:,} and loaded" in sentences(comparison)
    before.check()
    assert processes() == children
    assert own is False or not list(tmp_path.iterdir())


def test_a_node_that_is_not_there_is_an_error_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.sock"
    check_refused(capsys, f"demo --node {path}", f"--node='{path}': expected a node that is there: no node listens at")


def test_who_has_a_node_does_not_choose_its_policy(capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, "demo --node --policy lru", "--policy='lru': expected not to be used with --node")


def test_who_names_a_node_does_not_choose_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    message = "--host='1GiB': expected not to be used with --node PATH: that node has its own memory"
    check_refused(capsys, "demo --node /tmp/node.sock --host 1GiB", message)


def test_a_node_without_room_is_not_praised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RealNode(tmp_path / "node.sock", memory="4KiB") as node:
        comparison = compare_at_node(tiny(), str(node.path), lambda _run, _done: None)
    assert comparison.identical_outputs
    assert sentences(comparison).startswith("Nothing was loaded: engines found nothing at the node.")
    assert "serving without the node" in caplog.text
    assert "start the node with more (--memory, --share)" in caplog.text

"""The chat benchmark keeps what it has when something goes wrong, ends all engines, and says which goals are reached.

The engines here are processes that say numbers.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from chat_users import Round
from chat_workload import SMALL
from goals import at_least, goal_lines
from vllm_chat import Comparison, Settings, goals
from vllm_common import GIB, SMALL_MODEL, Child, say_what_does_not_fit, tier_bytes

SETTINGS = Settings(SMALL, SMALL_MODEL, 640, 64 << 20, small=True)
NOT_KVTIDE_MS, KVTIDE_MS = 20.0, 10.0
SPIN = "import time; time.sleep(600)"


def serve(mode: str, orders: Any) -> None:
    """See `vllm_chat.serve`. `lmcache` ends in the second round."""
    orders.send([1.0, "a machine"])
    while (number := orders.recv()) is not None:
        if mode == "lmcache" and number == 2:
            return
        wait_ms = KVTIDE_MS if mode.startswith("kvtide") else NOT_KVTIDE_MS
        orders.send([Round(number, [wait_ms], [wait_ms] * 3, [1.0] * 3, [1.0], wait_ms / 10, {"0.0": [1]})])
    orders.send([{"counted": mode}])


class Numbers(Comparison):
    """Its engines are not vLLM's."""

    children: list[Child]

    def _start(self, mode: str) -> Child:
        self._children.append(Child(multiprocessing.get_context("spawn"), serve, mode))
        self.children = self._children
        return self.children[-1]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "rows.json"


def test_what_is_measured_is_kept_after_each_round_also_of_an_engine_that_ends_in_the_next_one(
    out: Path, tmp_path: Path
) -> None:
    comparison = Numbers(SETTINGS, out, tmp_path)
    comparison.run(["kvtide-eager", "lmcache"])
    kept = json.loads(out.read_text())
    rounds = {row["mode"]: [each["number"] for each in row["rounds"]] for row in kept["rows"]}
    assert rounds == {"kvtide-eager": [1, 2], "lmcache": [1]}
    assert comparison.failed == {"lmcache": "it ended"}
    assert "lmcache" in comparison.table()
    assert not any(child.is_alive() for child in comparison.children)


def test_a_run_that_breaks_off_leaves_no_engine_behind_not_even_a_paused_one(tmp_path: Path) -> None:
    no_folder = tmp_path / "none" / "rows.json"
    comparison = Numbers(SETTINGS, no_folder, tmp_path)
    with pytest.raises(FileNotFoundError):
        comparison.run(["kvtide-eager", "offloading"])
    assert all(child.is_alive() for child in comparison.children), "one of them is paused"
    comparison.close()
    assert not any(child.is_alive() for child in comparison.children)


def test_a_mode_in_two_groups_has_a_row_in_each_and_a_peer_is_compared_with_its_own_group(tmp_path: Path) -> None:
    comparison = Numbers(SETTINGS, None, tmp_path)
    comparison.run(["kvtide-eager", "offloading"])
    comparison.run(["kvtide-eager"])
    comparison.rows[-1]["follow_up_ms"]["p50"] = 1000.0
    assert [(row["mode"], row["group"]) for row in comparison.rows] == [
        ("kvtide-eager", 1),
        ("offloading", 1),
        ("kvtide-eager", 2),
    ]
    [first, *_] = goals(comparison.rows)
    assert first.what == "kvtide-eager, follow-up p50, of the best peer (offloading)"
    assert (first.found, first.is_reached) == (KVTIDE_MS / NOT_KVTIDE_MS, True)


def test_goals_are_said_with_what_was_found() -> None:
    assert goal_lines([]) == goal_lines([], small=True) == []
    assert goal_lines([at_least("copies", 0.96, 0.95)], small=True) == [
        "goals (with --small the numbers mean nothing):",
        "  copies: 0.960, goal at least 0.95: reached",
    ]
    assert goal_lines([at_least("copies", 0.94, 0.95)]) == [
        "goals:",
        "  copies: 0.940, goal at least 0.95: MISSED",
    ]


def spawn_a_grandchild(orders: Any) -> None:
    import subprocess  # noqa: PLC0415 (in the new process)

    orders.send([subprocess.Popen([sys.executable, "-c", SPIN]).pid])  # noqa: S603 (ours)


def test_what_an_engine_leaves_running_ends_with_it() -> None:
    child = Child(multiprocessing.get_context("spawn"), spawn_a_grandchild)
    [pid] = child.answer()
    child.end()
    end_s = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < end_s, "it lives"
        time.sleep(0.01)


def test_host_tiers_that_are_too_small_or_too_many_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert tier_bytes("kvtide-eager+host=8GiB+packing=on@turn-4", 44 * GIB) == 8 * GIB
    assert tier_bytes("offloading", 44 * GIB) == 44 * GIB
    assert tier_bytes("device-cache", 44 * GIB) == tier_bytes("kvtide-node+mode=eager", 44 * GIB) == 0
    say_what_does_not_fit(["none"], 1, 2)
    assert capsys.readouterr().err == ""
    say_what_does_not_fit(["none", "offloading"], 1 << 50, 1 << 51)
    said = capsys.readouterr().err
    assert "offloading has 1048576.0 GiB of host memory, and there are 2097152.0 GiB of KV" in said
    assert "none,offloading: host tiers of 1048576.0 GiB and 2 engines take about 1048592.0 GiB" in said

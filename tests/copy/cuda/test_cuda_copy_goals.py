"""What `benchmarks/cuda_copy.py` does with its rows: it keeps each as it comes, and says which goals are reached."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import cuda_copy

WAYS = ("store", "load", "both")


def row_of(fragment: int, share: float, **more: Any) -> dict[str, Any]:
    return {"fragment": fragment, **{f"{way}_share": share for way in WAYS}, **more}


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(__version__="1", cuda=SimpleNamespace(get_device_name=lambda: "a GPU"))
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: fake if name in {"torch", "triton"} else real(name))


@pytest.mark.usefixtures("without_gpu")
def test_a_row_that_fails_loses_none_of_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(_: Any) -> Iterator[dict[str, Any]]:
        yield row_of(2048, 0.96, run=1)
        raise AssertionError("the GPU is lost")

    monkeypatch.setattr(cuda_copy, "shares", shares)
    out = tmp_path / "folder" / "copies.json"
    monkeypatch.setattr(sys, "argv", ["cuda_copy.py", "--only", "shares", "--json", str(out)])
    with pytest.raises(AssertionError, match="the GPU is lost"):
        cuda_copy.main()
    assert [row["fragment"] for row in json.loads(out.read_text())["shares"]] == [2048]


@pytest.mark.usefixtures("without_gpu")
def test_the_worst_of_all_runs_is_beside_its_goal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row_of(2048, 0.96, run=1), row_of(2048, 0.94, run=2)]
    monkeypatch.setattr(cuda_copy, "shares", lambda _: iter(rows))
    monkeypatch.setattr(sys, "argv", ["cuda_copy.py", "--only", "shares"])
    cuda_copy.main()
    said = capsys.readouterr().out
    assert "| 2 KiB | 94.0% to 96.0% | 94.0% to 96.0% | 94.0% to 96.0% |" in said
    assert "store, lowest share of one large copy: 0.940, goal at least 0.95: MISSED" in said
    assert "both, lowest share of one large copy: 0.940, goal at least 0.9: reached" in said


def test_packed_copies_are_compared_with_plain_ones() -> None:
    packing = [
        {"fragment": size, "packed": row_of(size, share), "auto_ratio": dict.fromkeys(WAYS, 1.0)}
        for size, share in ((2048, 1.1), (8192, 1.21))
    ]
    slow_down = [
        {"kernel": cuda_copy.PRODUCT, "way": way, "blocks": blocks, "slow_down": cost}
        for way in WAYS
        for blocks, cost in (("plain", 0.02), ("packed", 0.06))
    ]
    node = [{f"{way}_ratio": 0.98 for way in WAYS}]
    found = cuda_copy.goals({"packing": packing, "slow_down": slow_down, "node": node})
    reached = {goal.what: goal.is_reached for goal in found}
    assert reached["packed, store, of one large copy"], "from 8 KiB on"
    assert reached["auto, random bits, both, times as fast as plain"]
    assert not reached["bf16 matrix product beside packed copies, both, points slower than beside plain ones"]
    assert reached["node, load, of the rate of private memory"]
    assert len(reached) == 12

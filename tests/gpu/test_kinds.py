"""Every kind of KV on vLLM and a GPU: what was loaded says what computed KV says, and a wrong block would show.

    PYTHONPATH=src python -m pytest tests/gpu/test_kinds.py -o filterwarnings=default -s

Twelve conversations go on after the device, which holds less than half of them, has evicted them.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from tests.gpu import on_vllm  # first: it says where vLLM's engine runs, and skips where there is no vLLM
from tests.gpu.kinds import FIRST_TURNS, KINDS, Found, examine

__all__ = ["on_vllm"]

PATIENCE_S = 120.0


def check(name: str, found: Found) -> None:
    print(f"{name}: {found}")  # noqa: T201 (how far from the bound it is, for those who ask with -s)
    assert found.loaded_tokens > sum(map(len, FIRST_TURNS)) // 2, "most of it was loaded"
    # bf16 in batches of other shapes moves logprobs, on an H200 by up to 0.9, where a wrong block moves them by 3.5.
    assert 2 * found.right < min(found.wrong_first, found.wrong_last), "as far apart as with a wrong block"
    assert found.right < 1.5
    assert min(found.wrong_first, found.wrong_last) > 1, "a wrong block would not show"
    assert (found.graphs != "NONE") == ("CUDA graphs" in name), "vLLM runs other graphs than it was told"


@pytest.mark.parametrize("name", KINDS)
def test_what_was_loaded_says_what_was_computed_and_a_wrong_block_would_show(name: str) -> None:
    check(name, examine(KINDS[name]))


def _serve(name: str, meeting: Any, said: Any) -> None:
    meeting.wait()
    said.put((name, examine(KINDS[name])))


def test_engines_beside_each_other_on_one_gpu_do_not_notice_each_other() -> None:
    spawn = multiprocessing.get_context("spawn")
    names = ("dense", "sliding")
    meeting, said = spawn.Barrier(len(names), timeout=PATIENCE_S), spawn.Queue()
    engines = [spawn.Process(target=_serve, args=(name, meeting, said)) for name in names]
    for each in engines:
        each.start()
    found = [said.get(timeout=PATIENCE_S) for _ in engines]
    for each in engines:
        each.join(PATIENCE_S)
    assert [each.exitcode for each in engines] == [0, 0]
    for name, seen in found:
        check(f"{name}, beside another engine", seen)

"""vLLM hears of a load before its last bytes are there only where nothing can read them by then.

The copy engine of these tests moves the bytes of a load when compute waits for them, and not before: what reads sooner
finds what others have left in the blocks, and says something else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtide.core import FullAttention, StateSpace
from tests.vllm.engines import Control, LateEngine
from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import Engine, engine, prompt
from tests.vllm.models import LFM2_ARGS, write_lfm2
from tests.vllm.test_round_trip import assert_same

OTHERS = [prompt(seed, 700) for seed in range(10, 14)]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Control:
    control = Control(LateEngine)
    monkeypatch.setattr("kvtide.vllm.kv_tensors.make_copy_engine", control.make)
    return control


def leave_other_bytes(offloading: Engine) -> None:
    """Let other requests have written to every device block, as on a busy server."""
    offloading.forget_device()
    offloading.generate(*OTHERS)
    offloading.forget_device()


def test_f7_states_that_vllm_copies_before_it_computes_are_there(tmp_path: Path, late: Control) -> None:
    """LFM2: the runner copies the state of a hit to its next block before any connector is asked."""
    model = write_lfm2(tmp_path / "lfm2")
    prompts = [prompt(seed, length) for seed, length in enumerate((300, 400, 500))]
    with engine(model, None, **LFM2_ARGS) as plain:
        expected = plain.generate(*prompts)
    with engine(model, **LFM2_ARGS) as offloading:
        assert [type(group) for group in offloading.side.config.geometry.groups] == [StateSpace, FullAttention]
        assert_same(offloading.generate(*prompts), expected)
        leave_other_bytes(offloading)
        assert_same(offloading.generate(*prompts), expected)
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()


def test_f7_attention_waits_for_the_last_bytes_of_a_load(llama: Path, llama_says: Says, late: Control) -> None:
    """Llama: it goes on early, and computes nothing before its blocks are full."""
    prompts = PROMPTS[:3]
    with engine(llama) as offloading:
        assert_same(offloading.generate(*prompts), llama_says(*prompts))
        leave_other_bytes(offloading)
        assert_same(offloading.generate(*prompts), llama_says(*prompts))
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()

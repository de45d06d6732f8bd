"""What `kvtide plan --measure` finds on a machine with a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtide.traces.measured import measure_machine
from tests import command_line

PEAK_FLOPS = 5e15
"""No GPU does more in 16 bits."""


def test_the_link_the_memory_and_a_prefill_are_measured() -> None:
    measured = measure_machine()
    assert measured.gpu is not None, measured.why_no_gpu
    assert measured.gpu.load_bytes_per_s > 1e9
    assert measured.gpu.store_bytes_per_s > 1e9
    assert measured.gpu.memory_bytes_per_s > measured.gpu.load_bytes_per_s
    assert measured.gpu.memory_bytes > 1 << 30
    assert 1e12 < measured.gpu.flops < PEAK_FLOPS


def test_a_plan_is_made_with_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    shape = {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
    config.write_text(json.dumps({**shape, "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 128_256}))
    code, out, err = command_line.run(
        capsys,
        *("plan", "--measure", "--model-config", str(config), "--gpu-hour", "2", "--requests", "60", "--json"),
    )
    assert code == 0, err
    rates = json.loads(out)["rates"]
    assert rates["load_bytes_per_s"]["source"] == rates["prefill_tokens_per_s"]["source"] == "measured"
    assert "16 layers" in rates["prefill_tokens_per_s"]["how"]

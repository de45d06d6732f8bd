"""Rates: each says where it comes from, and follows the GPU and the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtide.traces.device_memory import kv_memory
from kvtide.traces.gpus import GPUS, gpu_named
from kvtide.traces.measured import Measured, measure_machine, measured_rates
from kvtide.traces.model import DEFAULT_MODEL, Model
from kvtide.traces.rates import derive_rates
from tests import command_line

LLAMA_70B = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "vocab_size": 128_256,
}
SMALL = ("--requests", "60", "--policies", "lru", "--json")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    code, out, _ = command_line.run(capsys, "plan", *arguments, *SMALL)
    assert code == 0
    rates: dict[str, dict[str, object]] = json.loads(out)["rates"]
    return rates


def test_a_larger_model_is_slower_and_leaves_less_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_70B))
    machine = ("--gpu", "H100", "--gpus", "4")
    large, small = run(capsys, *machine, "--model-config", str(config)), run(capsys, *machine)
    for name, least, most in (("prefill_tokens_per_s", 8.5, 9), ("device_bytes", 1.7, 2.0)):
        ratio = float(str(small[name]["value"])) / float(str(large[name]["value"]))
        assert least < ratio < most, name
    assert large["prefill_tokens_per_s"]["source"] == "derived"
    assert "70.6B parameters" in str(large["prefill_tokens_per_s"]["how"])
    assert large["bytes_per_token"]["value"] == 327_680
    assert large["load_bytes_per_s"] == small["load_bytes_per_s"]


def test_every_number_says_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--prefill", "5000", "--link", "25GB/s", "--gpu-hour", "2", "--device", "10GiB")
    for arguments, expected in (((), "default"), (("--gpu", "l4"), "derived"), (given, "given")):
        rates = run(capsys, *arguments)
        assert rates["prefill_tokens_per_s"]["source"] == expected
        assert rates["load_bytes_per_s"]["source"] == expected
        assert rates["device_bytes"]["source"] == expected
        assert all(rate["source"] == "given" or rate["how"] for rate in rates.values())
    assert rates["gpu_hour_dollars"]["source"] == "given"
    assert rates["gib_hour_dollars"]["source"] == "default"
    assert rates["load_bytes_per_s"]["value"] == 25e9


def test_what_is_printed_has_all_sources(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command_line.run(capsys, "plan", "--gpu", "a100", *SMALL[:-1])
    assert code == 0
    assert "prefill tokens per s: 9,713.6 (derived: NVIDIA's data sheet of the A100 80GB SXM: 50% of 312 TFLOPS" in out
    assert "gpu hour dollars: 1.8 (default" in out


@pytest.mark.parametrize("gpu", GPUS)
def test_names_of_gpus_may_be_written_in_capitals(gpu: str) -> None:
    assert gpu_named(gpu.upper()) is GPUS[gpu]


def test_the_parameters_of_a_model_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    twice = run(capsys, "--gpu", "h100", "--parameters", "16.06B")
    once = run(capsys, "--gpu", "h100")
    assert twice["prefill_tokens_per_s"]["value"] == pytest.approx(
        float(str(once["prefill_tokens_per_s"]["value"])) / 2
    )
    lean = run(capsys, "--gpu", "h100", "--parameters", "16.06B", "--weights", "8GB")
    assert float(str(lean["device_bytes"]["value"])) > float(str(twice["device_bytes"]["value"]))


def test_experts_that_are_not_used_cost_room_and_no_time() -> None:
    dense = Model("dense", 1024, 8e9, 8e9, 16e9)
    sparse = Model("sparse", 1024, 30e9, 8e9, 60e9)
    h100 = GPUS["h100"]
    for name in ("prefill_tokens_per_s", "decode_s_per_token"):
        assert getattr(derive_rates(h100, sparse), name).value == getattr(derive_rates(h100, dense), name).value
    assert kv_memory(h100, sparse, 1).value < kv_memory(h100, dense, 1).value


def test_a_model_that_tells_no_parameters_is_taken_for_the_usual_one_and_that_is_said() -> None:
    unknown = Model("secret", 1024, None, None, None)
    rate = derive_rates(GPUS["h100"], unknown).prefill_tokens_per_s
    assert rate.value == derive_rates(GPUS["h100"], DEFAULT_MODEL).prefill_tokens_per_s.value
    assert "secret tells none" in rate.how


def test_what_is_measured_here_takes_the_place_of_what_is_derived() -> None:
    rates = derive_rates(GPUS["h100"], DEFAULT_MODEL)
    with_gpu = Measured(9e9, 8e9, "a GPU", 50e9, 40e9, 700e12)
    measured = measured_rates(rates, with_gpu, DEFAULT_MODEL)
    assert (measured.load_bytes_per_s.value, measured.load_bytes_per_s.source) == (40e9, "measured")
    assert (measured.store_bytes_per_s.value, measured.store_bytes_per_s.source) == (50e9, "measured")
    assert measured.prefill_tokens_per_s.source == "derived"
    assert "700 TFLOPS measured on the a GPU" in measured.prefill_tokens_per_s.how
    assert "no prefill was run" in with_gpu.text
    assert measured_rates(rates, Measured(9e9, 8e9), DEFAULT_MODEL) == rates


def test_measuring_says_what_was_measured_and_what_was_given_stays(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command_line.run(capsys, "plan", "--measure", "--link", "1GB", *SMALL)
    assert code == 0
    assert "measured on this machine: copies in host memory" in err
    rates = json.loads(out)["rates"]
    assert rates["host_copy_bytes_per_s"]["source"] == "measured"
    assert rates["host_copy_bytes_per_s"]["value"] > 0
    assert rates["load_bytes_per_s"] == {"value": 1e9, "source": "given", "how": ""}


def test_copies_in_host_memory_are_measured_with_our_own_code() -> None:
    measured = measure_machine()
    assert measured.host_store_bytes_per_s > 0
    assert measured.host_load_bytes_per_s > 0

"""Rates: each says where it comes from, and follows the GPU and the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.traces.device_memory import kv_memory
from kvtide.traces.gpus import GPUS, gpu_named
from kvtide.traces.layer import Layer, dense_layer
from kvtide.traces.measured import gpu_here, measure_machine, measured_rates
from kvtide.traces.measured_gpu import PROMPT_TOKENS, MeasuredGpu
from kvtide.traces.model import DEFAULT_MODEL, Model
from kvtide.traces.prices import GIB
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
    assert (
        "  NVIDIA's data sheet of the A100 80GB SXM (derived):\n    prefill: 9,714 tokens/s (50% of 312 TFLOPS" in out
    )
    assert "a GPU: $1.80 per hour (default: A100 80GB SXM, an estimate" in out


def test_what_many_numbers_come_from_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    for command, size in (("plan", "--sizes"), ("replay", "--host")):
        code, out, _ = command_line.run(capsys, command, size, "64GiB", "--requests", "60", "--decode", "0.02")
        assert code == 0
        assert out.count("measured on one H200 SXM with vLLM 0.24, Llama-3.1-8B's shape (default):\n") == 1
        assert out.count("H200 SXM with vLLM") == 1
        assert "  decode: 20 ms per token (given)\n" in out
        assert "    prefill: 35,794 tokens/s (16,000 tokens in 469 ms, 22 if cached)\n" in out


def test_what_several_gpus_are_given_says_no_more_than_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--prefill", "5000", "--gpus", "2")["prefill_tokens_per_s"] == {
        "value": 10_000.0,
        "source": "given",
        "how": "2 GPUs",
    }


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


def test_parameters_alone_do_not_tell_the_kv_of_a_token_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    large = ("plan", "--parameters", "70B", "--gpus", "4", *SMALL[:-1])
    code, out, err = command_line.run(capsys, *large)
    assert code == 0
    still = "still that of Llama-3.1-8B"
    assert f"KV of a token is {still}, 128 KiB: give --bytes-per-token or --model-config" in err
    assert f"KV of a token: 128 KiB (default: {still}: give --bytes-per-token or --model-config)" in out
    _, out, err = command_line.run(capsys, *large, "--bytes-per-token", "320KiB")
    assert "KV of a token: 320 KiB (given)" in out
    assert still not in out + err


def test_layers_with_a_window_are_said_to_be_taken_as_full_unless_somebody_knows_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    window = {"sliding_window": 1024, "sliding_window_pattern": 5, "model_type": "gemma3_text"}
    config.write_text(json.dumps({**LLAMA_70B, **window}))
    model = ("--model-config", str(config), "--gpus", "2", "--requests", "60")
    for command in ("plan", "replay"):
        _, out, err = command_line.run(capsys, command, *model)
        assert "all 80 layers of gemma3_text are taken as full attention, and only 16 are (sliding_window 1024)" in err
        assert "the 16 alone is --bytes-per-token '64 KiB'" in err
        assert "KV of a token: 320 KiB (derived: KV of gemma3_text, all layers taken as full attention)" in out
        _, out, err = command_line.run(capsys, command, *model, "--bytes-per-token", "64 KiB")
        assert "KV of a token: 64 KiB (given)" in out
        assert "70.6B parameters" in out
        assert "full attention" not in out + err


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
    assert "Llama-3.1-8B: secret tells none" in derive_rates(GPUS["h200"], unknown).prefill_tokens_per_s.how
    assert "of weights (Llama-3.1-8B: secret tells none)" in kv_memory(GPUS["h200"], unknown, 1).how


def found(name: str = "NVIDIA H100 PCIe") -> MeasuredGpu:
    layer = DEFAULT_MODEL.layer
    assert layer is not None
    return MeasuredGpu(name, 60 * GIB, 1.5e12, 50e9, 40e9, layer, layer_s=0.008)


def test_what_is_measured_here_takes_the_place_of_what_is_derived() -> None:
    rates = measured_rates(derive_rates(GPUS["h100"], DEFAULT_MODEL), found(), DEFAULT_MODEL)
    assert (rates.load_bytes_per_s.value, rates.load_bytes_per_s.source) == (40e9, "measured")
    assert (rates.store_bytes_per_s.value, rates.store_bytes_per_s.source) == (50e9, "measured")
    assert rates.prefill_tokens_per_s.value == pytest.approx(PROMPT_TOKENS / (32 * 0.008))
    assert rates.prefill_tokens_per_s.source == "measured"
    assert (
        "one of the 32 layers of Llama-3.1-8B, by torch and no engine, on the NVIDIA H100 PCIe"
        in rates.prefill_tokens_per_s.how
    )


def test_of_a_model_whose_layers_were_not_run_the_prefill_is_derived_from_the_speed_of_those_that_were() -> None:
    sparse = Model("sparse", 1024, 30e9, 3e9, 60e9)
    rate = measured_rates(derive_rates(GPUS["h100"], sparse), found(), sparse).prefill_tokens_per_s
    layer = DEFAULT_MODEL.layer
    assert layer is not None
    assert rate.value == pytest.approx(layer.parameters * PROMPT_TOKENS / 0.008 / 3e9)
    assert rate.source == "derived"
    assert "layer of Llama-3.1-8B measured on the NVIDIA H100 PCIe" in rate.how


def test_the_gpu_that_is_planned_for_is_the_one_that_was_measured() -> None:
    known = gpu_here(found(), None)
    assert (known.name, known.memory_bytes, known.dollars_per_hour) == ("H100 SXM", 60 * GIB, 3.0)
    assert gpu_here(found(), "h100") == known
    with pytest.raises(ConfigError, match=r"--gpu='a100'.*another one, NVIDIA H100 PCIe"):
        gpu_here(found(), "a100")


def test_of_a_gpu_that_is_not_known_all_is_measured_and_its_price_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtide.traces.measured.measure_gpu", lambda layer: found("NVIDIA L40S"))
    code, _, err = command_line.run(capsys, "plan", "--measure", *SMALL)
    assert code != 0
    assert "--gpu-hour" in err
    assert "one NVIDIA L40S, whose price is not known here" in err
    rates = run(capsys, "--measure", "--gpu-hour", "1.5")
    assert rates["device_bytes"]["value"] == pytest.approx(0.9 * 60 * GIB - 2 * GIB - 16.06e9)
    assert rates["decode_s_per_token"]["value"] == pytest.approx(16.06e9 / (0.6 * 1.5e12))
    assert "measured on the NVIDIA L40S" in str(rates["decode_s_per_token"]["how"])
    assert {rates[name]["source"] for name in ("load_bytes_per_s", "prefill_tokens_per_s")} == {"measured"}


def test_a_gpu_that_cannot_be_measured_is_told_in_its_own_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(layer: Layer) -> MeasuredGpu:
        raise RuntimeError("CUDA out of memory. Tried to allocate\nand so on")

    monkeypatch.setattr("kvtide.traces.measured.measure_gpu", fails)
    code, out, err = command_line.run(capsys, "plan", "--measure", *SMALL)
    assert code == 0
    assert "link and prefill are not measured (RuntimeError: CUDA out of memory. Tried to allocate)" in err
    assert json.loads(out)["rates"]["load_bytes_per_s"]["source"] == "default"


def test_a_layer_has_the_parameters_that_the_model_counts() -> None:
    layer = DEFAULT_MODEL.layer
    assert layer is not None
    embeddings = 2 * 128_256 * layer.hidden
    assert layer.count * layer.parameters + embeddings == pytest.approx(DEFAULT_MODEL.parameters, rel=0.001)
    fields = {**LLAMA_70B, "num_key_value_heads": None}
    assert dense_layer(LLAMA_70B) == Layer(80, 8192, 64, 8, 128, 28_672)
    assert dense_layer(fields) == Layer(80, 8192, 64, 64, 128, 28_672)
    assert dense_layer({**LLAMA_70B, "num_local_experts": 8}) is None
    assert dense_layer({**LLAMA_70B, "kv_lora_rank": 512}) is None
    assert dense_layer({"num_hidden_layers": 80}) is None


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

"""Tiers below host memory on real vLLM: a restart on a warm disk, two engines that share a store, what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer import get_kv_transfer_group

from kvtide.core.below.fetch_break_even import FetchBreakEven
from kvtide.errors import ConfigError
from kvtide.vllm.tiers import refuse_unstable_keys
from kvtide.vllm.weights import fingerprint, weights_part
from tests.ports import free_port
from tests.tiers.shared.servers import Server, until
from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import Engine, engine
from tests.vllm.test_round_trip import assert_same, hit


@pytest.fixture(autouse=True)
def fetching_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first fetch that a busy machine held up would make computing look faster, and no other one be tried."""
    monkeypatch.setattr(FetchBreakEven, "pays", lambda *_: True)


PATIENT_MS = 10_000
"""Where a test is about bytes, not about time: this machine may be busy."""


def disk(path: Path, **options: Any) -> dict[str, Any]:
    return {"type": "disk", "path": str(path), "size": "64MiB", "deadline_ms": PATIENT_MS, **options}


def cached_tokens(offloading: Engine, prompts: list[list[int]], expected: list[Any]) -> list[int]:
    results = offloading.generate(*prompts)
    assert_same(results, expected)
    return [result.cached_tokens for result in results]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tier"
    path.mkdir()
    return path


@pytest.mark.parametrize("model", ["llama", "gemma"])
def test_an_engine_that_is_restarted_finds_its_blocks_on_the_disk(
    model: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    says: Says = request.getfixturevalue(f"{model}_says")
    prompts = PROMPTS[1:5]
    options = {"tiers": [disk(folder)]}
    with engine(path, blocks=96, options=options) as first:
        assert cached_tokens(first, prompts, says(*prompts)) == [0] * 4
        first.drain()
        assert first.metrics.sunk_blocks > 0
    with engine(path, blocks=96, options=options) as second:
        assert cached_tokens(second, prompts, says(*prompts)) == [hit(tokens) for tokens in prompts]
        assert second.metrics.fetched_blocks > 0
        second.check_at_rest()


def test_tiers_are_counted_for_metrics(llama: Path, folder: Path) -> None:
    with engine(llama, options={"tiers": [disk(folder)]}) as offloading:
        offloading.generate(*PROMPTS[1:3])
        offloading.drain()
        side = get_kv_transfer_group()._worker
        side._stats._next_s = 0.0
        stats = side.take_stats()
        assert stats is not None
        blocks = offloading.metrics.sunk_blocks
        assert blocks > 0
        told = side._stats._told
        assert told["tier_keys/disk/put/hit"] == blocks
        assert told["tier_bytes/disk/put"] > 0
        assert stats.data["gauges"]["tier_off/disk/0"] == 0
        assert stats.data["gauges"]["tier_bytes_budget/disk/0"] > 0


def test_a_damaged_marker_does_not_stop_the_server(llama: Path, folder: Path) -> None:
    (folder / "kvtide-store.json").write_text("half a mark")
    with engine(llama, options={"tiers": [disk(folder)]}) as offloading:
        offloading.generate(PROMPTS[1])
        offloading.drain()
        assert offloading.metrics.sunk_blocks > 0
    assert (folder / "format-unknown" / "kvtide-store.json").read_text() == "half a mark"


def test_f9_a_reset_reaches_the_disk(llama: Path, llama_says: Says, folder: Path) -> None:
    prompts = PROMPTS[:3]
    options = {"tiers": [disk(folder)]}
    with engine(llama, options=options) as first:
        first.generate(*prompts)
        first.drain()
        first.scheduler.connector.reset_cache()
        first.drain()
    with engine(llama, options=options) as second:
        assert cached_tokens(second, prompts, llama_says(*prompts)) == [0] * 3
        assert second.metrics.fetched_blocks == 0


def test_f23_blocks_of_other_weights_are_never_read(llama: Path, gemma: Path, gemma_says: Says, folder: Path) -> None:
    prompts = PROMPTS[:2]
    options = {"tiers": [disk(folder)]}
    with engine(llama, blocks=96, options=options) as first:
        first.generate(*prompts)
        first.drain()
    with engine(gemma, blocks=96, options=options) as second:
        assert cached_tokens(second, prompts, gemma_says(*prompts)) == [0] * 2


def test_f23_blocks_of_another_model_configuration_are_never_read(
    llama: Path, folder: Path, vllm_log: pytest.LogCaptureFixture
) -> None:
    prompts = PROMPTS[1:3]
    options = {"tiers": [disk(folder)]}
    ropes = {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}
    with engine(llama, None, blocks=96, hf_overrides=ropes) as plain:
        expected = plain.generate(*prompts)
    with engine(llama, blocks=96, options=options) as first:
        assert [result.tokens for result in first.generate(*prompts)] != [result.tokens for result in expected]
        first.drain()
        assert first.metrics.sunk_blocks > 0
    with engine(llama, blocks=96, options=options, hf_overrides=ropes) as second:
        assert cached_tokens(second, prompts, expected) == [0] * 2
        assert second.metrics.fetched_blocks == 0
        second.drain()
    assert re.search(r"another namespace.*: model\.hf\.rope_parameters: stored .*10000.*, now .*500000", vllm_log.text)
    with engine(llama, blocks=96, options=options, hf_overrides=ropes) as third:
        assert cached_tokens(third, prompts, expected) == [hit(tokens) for tokens in prompts]


def test_a_restart_with_other_room_and_other_names_stays_warm(llama: Path, llama_says: Says, folder: Path) -> None:
    prompts = PROMPTS[1:3]
    options = {"tiers": [disk(folder)]}
    with engine(llama, blocks=96, options=options) as first:
        first.generate(*prompts)
        first.drain()
    other: dict[str, Any] = {"max_num_seqs": 3, "gpu_memory_utilization": 0.5, "seed": 7, "served_model_name": "other"}
    with engine(llama, blocks=70, options={**options, "host": "20MiB", "mode": "lazy"}, **other) as second:
        assert cached_tokens(second, prompts, llama_says(*prompts)) == [hit(tokens) for tokens in prompts]


def test_f23_tiers_are_refused_when_keys_do_not_outlive_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    config = SimpleNamespace(cache_config=SimpleNamespace(prefix_caching_hash_algo="xxhash"))
    with pytest.raises(ConfigError, match=r"tiers=\['null'\]: expected keys that outlive .* PYTHONHASHSEED=0"):
        refuse_unstable_keys("tiers", ["null"], config)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    refuse_unstable_keys("tiers", ["null"], config)


def test_f23_other_weights_in_the_same_folder_are_another_namespace(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(100_000))
    before = fingerprint(tmp_path)
    weights.touch()
    assert fingerprint(tmp_path) == before, "copies of a file are the same file"
    weights.write_bytes(bytes(50_000) + b"\1" * 50_000)
    assert fingerprint(tmp_path) != before


@pytest.mark.parametrize("name", ["hf_quant_config.json", "modeling_mine.py", "consolidated.00.pth"])
def test_f23_files_that_say_what_is_computed_belong_to_the_weights(tmp_path: Path, name: str) -> None:
    before = fingerprint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert fingerprint(tmp_path) == before, "keys are made of tokens"
    (tmp_path / name).write_text("{}")
    assert fingerprint(tmp_path) != before


def test_f23_a_model_that_is_one_file_is_known_by_its_content(tmp_path: Path) -> None:
    file, copied = tmp_path / "model.gguf", tmp_path / "copy.gguf"
    weights = bytearray(4 << 20)
    file.write_bytes(weights)
    copied.write_bytes(weights)
    assert fingerprint(file) == fingerprint(copied)
    for begin in range(0, 4 << 20, 64 << 10):
        swapped = weights[:]
        swapped[begin : begin + (64 << 10)] = b"\1" * (64 << 10)
        copied.write_bytes(swapped)
        assert fingerprint(file) != fingerprint(copied), "a 64th of it is other"


def test_f23_weights_are_known_by_their_own_commit_when_the_configuration_comes_from_elsewhere(tmp_path: Path) -> None:
    refs = tmp_path / "models--me--model" / "refs"
    refs.mkdir(parents=True)
    model = SimpleNamespace(
        model="me/model", hf_config_path="you/other", hf_config=SimpleNamespace(), revision=None, quantization=None
    )
    parts = set()
    for commit in ("abc", "def"):
        (refs / "main").write_text(commit)
        parts.add(weights_part(model, SimpleNamespace(download_dir=str(tmp_path))))
    assert len(parts) == 2


def test_two_engines_share_a_store(llama: Path, llama_says: Says) -> None:
    prompts = PROMPTS[1:5]
    with Server() as server:
        options = {"tiers": [{"type": "valkey", "url": server.url, "deadline_ms": PATIENT_MS}]}
        with engine(llama, options=options) as first:
            first.generate(*prompts)
            first.drain()
        with engine(llama, options=options) as second:
            assert cached_tokens(second, prompts, llama_says(*prompts)) == [hit(tokens) for tokens in prompts]
            second.check_at_rest()


@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_f18_a_store_that_is_gone_costs_hits_and_nothing_else(llama: Path, llama_says: Says, fault: str) -> None:
    prompts = PROMPTS[:4]
    with Server() as server:
        options = {"tiers": [{"type": "valkey", "url": server.url}]}
        with engine(llama, options=options) as offloading:
            offloading.generate(*prompts[:2])
            offloading.drain()
            if fault == "killed":
                server.kill()
            else:
                server.pause()
            assert_same(offloading.generate(*prompts), llama_says(*prompts))
            offloading.forget_device()
            assert_same(offloading.generate(*prompts), llama_says(*prompts))
            offloading.check_at_rest()
            if fault == "paused":
                server.resume()


def test_a_store_that_comes_back_is_used_again(llama: Path, llama_says: Says) -> None:
    prompts = PROMPTS[:6]
    with Server() as server:
        options = {"tiers": [{"type": "valkey", "url": server.url, "deadline_ms": PATIENT_MS}]}
        with engine(llama, options=options) as offloading:
            server.kill()
            assert_same(offloading.generate(*prompts[:2]), llama_says(*prompts[:2]))
            server.start()

            def sinks() -> bool:
                offloading.generate(prompts[len(used) % 4 + 2])
                used.append(0)
                offloading.forget_device()
                offloading.manager.reset(below=False)
                offloading.drain()
                return bool(offloading.metrics.sunk_blocks)

            used: list[int] = []
            until(sinks)


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ([{"type": "disc", "path": ".", "size": "1GiB"}], "disk"),
        ([{"type": "disk", "path": "/nowhere/at/all", "size": "1GiB"}], "path"),
        ([{"type": "disk", "path": ".", "size": "1GiB", "sise": 1}], "size"),
        ([{"type": "valkey", "url": "valkey://"}], "url"),
        ("disk", "list"),
    ],
)
def test_bad_tiers_are_refused_at_start(llama: Path, tiers: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message), engine(llama, options={"tiers": tiers}):
        pass


def test_a_dead_port_is_no_reason_not_to_start(llama: Path, llama_says: Says) -> None:
    options = {"tiers": [{"type": "valkey", "url": f"valkey://127.0.0.1:{free_port()}"}]}
    with engine(llama, options=options) as offloading:
        assert_same(offloading.generate(PROMPTS[0]), llama_says(PROMPTS[0]))

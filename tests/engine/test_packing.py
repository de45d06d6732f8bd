"""The embedded engine with KV in bf16, packed on the host: the same outputs, from the host and from a disk.

`tests/vllm/test_packing_compiled.py` runs this, too, where numba is.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtide.copy import NullCopyEngine
from kvtide.copy.packing.codec import Codec, Reference
from kvtide.engine import Engine, EngineConfig, ModelConfig
from kvtide.engine.bfloat16 import narrowed, widened
from kvtide.errors import ConfigError
from tests.engine.support import ask, prompt

MODEL = ModelConfig(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=32, mlp=32, vocab=96)
CONFIG = EngineConfig(model=MODEL, device_blocks=16, block_tokens=16, kv_dtype="bfloat16")
BLOCK_BYTES, PACKED_BYTES = 2 * 2 * 16 * 2 * 32 * 2, 2 * 2 * 16 * 2 * 32 * 2 // 2048 * 1552
ON = {"host": "1MiB", "packing": "on"}


def replies(config: EngineConfig, offload: dict[str, Any] | None) -> tuple[list[tuple[int, ...]], Engine]:
    """Ask three questions, and each of them again; the device has room for one of them."""
    with Engine(config, offload) as engine:
        said = [ask(engine, f"{turn} {seed}", prompt(seed, 200)).tokens for turn in range(2) for seed in range(3)]
        return said, engine


@pytest.mark.parametrize("ranks", [1, 2])
def test_outputs_with_packing_are_those_without(ranks: int) -> None:
    config = replace(CONFIG, ranks=ranks)
    alone, _ = replies(config, None)
    plain, _ = replies(config, {"host": "1MiB", "packing": "off"})
    packed, engine = replies(config, ON)
    assert alone == plain == packed
    assert engine.manager is not None
    stored = engine.manager.metrics.stored_blocks
    assert engine.stats.loaded_tokens > 0
    assert engine.stats.store_bytes == stored * PACKED_BYTES
    assert engine.stats.saved_bytes * PACKED_BYTES == (BLOCK_BYTES - PACKED_BYTES) * (
        engine.stats.store_bytes + engine.stats.load_bytes
    )


def test_the_same_host_memory_has_1_3_times_the_slots() -> None:
    slots = {}
    for packing in ("on", "off"):
        with Engine(CONFIG, {"host": 1000 * BLOCK_BYTES, "packing": packing}) as engine:
            assert engine.manager is not None
            slots[packing] = engine.manager.gauges().slots
    assert slots["off"] == 1000
    assert slots["on"] == pytest.approx(1302, abs=1)


def test_packed_blocks_come_back_from_a_disk_and_only_to_an_engine_that_packs(tmp_path: Path) -> None:
    disk = {"type": "disk", "path": str(tmp_path), "size": "4MiB", "deadline_ms": 20_000}
    tiers = {"tiers": [disk], "min_fetch_tokens": 1}
    first, _ = replies(CONFIG, {**ON, **tiers})
    again, engine = replies(CONFIG, {**ON, **tiers})
    assert again == first
    assert engine.manager is not None
    assert engine.manager.metrics.fetched_blocks > 0
    plain, engine = replies(CONFIG, {**ON, **tiers, "packing": "off"})
    assert plain == first
    assert engine.manager is not None
    assert engine.manager.metrics.fetched_blocks == 0


def test_f23_packed_blocks_of_another_version_of_the_format_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as long as ours, so nothing but the namespace keeps them apart."""
    disk = {"type": "disk", "path": str(tmp_path), "size": "4MiB", "deadline_ms": 20_000}
    offload = {**ON, "tiers": [disk], "min_fetch_tokens": 1}
    first, _ = replies(CONFIG, offload)
    monkeypatch.setattr("kvtide.engine.offloading.NAMESPACE_PART", ("kvtide.packing", "bf16/2"))
    again, engine = replies(CONFIG, offload)
    assert again == first
    assert engine.manager is not None
    assert engine.manager.metrics.fetched_blocks == 0


class Counting(Reference):
    """Stands for compiled code."""

    def __init__(self) -> None:
        self.packed = self.unpacked = 0

    def pack_into(self, values: Any, tiles: Any) -> Any:
        self.packed += 1
        return super().pack_into(values, tiles)

    def unpack_into(self, tiles: Any, values: Any) -> None:
        self.unpacked += 1
        super().unpack_into(tiles, values)


def test_compiled_code_packs_where_there_is_any_and_is_compiled_when_the_engine_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting()
    monkeypatch.setattr("kvtide.engine.packing.has_compiled", lambda: True)
    monkeypatch.setattr("kvtide.engine.packing.compiled", lambda: counting)
    with caplog.at_level(logging.INFO, "kvtide.engine.packing"), Engine(CONFIG, ON) as engine:
        assert (counting.packed, counting.unpacked) == (1, 1)
        for turn in range(2):
            for seed in range(3):
                ask(engine, f"{turn} {seed}", prompt(seed, 200))
        assert engine.manager is not None
        assert engine.stats.loaded_tokens > 0
    assert counting.packed > engine.manager.metrics.stored_blocks > 0
    assert counting.unpacked > 2
    assert caplog.messages == ["packing is on, by compiled code (numba)"]


def no_numba() -> Codec:
    raise ImportError("Numba needs NumPy 2.4 or less")


@pytest.mark.parametrize(
    ("has_it", "said"),
    [
        (False, "which is slow; it is compiled where numba is installed"),
        (True, "which is slow: numba cannot be used (Numba needs NumPy 2.4 or less)"),
    ],
)
def test_the_reference_packs_where_numba_cannot_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_it: bool, said: str
) -> None:
    monkeypatch.setattr("kvtide.engine.packing.has_compiled", lambda: has_it)
    monkeypatch.setattr("kvtide.engine.packing.compiled", no_numba)
    with caplog.at_level(logging.INFO, "kvtide.engine.packing"):
        _, engine = replies(replace(CONFIG, ranks=2), ON)
    assert caplog.messages == [f"packing is on, by the reference in numpy, {said}"]
    assert engine.stats.loaded_tokens > 0


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (replace(CONFIG, kv_dtype="float64"), ON, "kv_dtype='bfloat16' in EngineConfig: float64 does not pack"),
        (replace(CONFIG, block_tokens=8, ranks=2), ON, "multiples of 2048 bytes"),
        (CONFIG, {**ON, "packing": "auto"}, "one of on, off"),
        (CONFIG, {"packing": "on", "node": str(Path.cwd() / "node.sock")}, "off beside node"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(config: EngineConfig, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Engine(config, options)
    assert caught.value.option == "packing"


def test_a_copy_engine_of_somebody_else_does_not_pack() -> None:
    with pytest.raises(ConfigError, match="the engine's own copy engine"):
        Engine(CONFIG, ON, copy_engine=lambda rank, device, arena: NullCopyEngine())


def test_bfloat16_is_the_nearest_value_and_stays_what_it_is() -> None:
    values = np.array([1.0, -0.5, 0.0, -0.0, 3.14159, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, np.inf])
    assert widened(narrowed(values)).tolist() == [1, -0.5, 0, -0.0, 3.140625, 1, 1 + 2**-6, 1 + 2**-7, np.inf]
    bits = np.arange(0x7F81, dtype=np.uint16)
    assert np.array_equal(narrowed(widened(bits)), bits)

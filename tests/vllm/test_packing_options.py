"""Which models can be packed: what cannot is refused by name, or left as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from kvtide.core import FullAttention, Geometry
from kvtide.errors import ConfigError
from kvtide.vllm import packing
from kvtide.vllm.layout import Layout
from kvtide.vllm.options import DEFAULT_PACKING, Options, read_options
from kvtide.vllm.packing import with_packing
from kvtide.vllm.replicas import Replicas

BF16 = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
BLOCK_BYTES = 1 << 20


def cache_of(*specs: Any) -> Any:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def layout(block_bytes: int = BLOCK_BYTES, replicas: int = 1) -> Layout:
    geometry = Geometry(groups=(FullAttention(16),), block_bytes=block_bytes, device_blocks=64)
    return Layout(geometry, (0,), 16, 16, drops_last_block=False, replicas=Replicas(replicas))


def decide(asked: str, cache: Any, *, tiers: int = 0, **facts: int) -> tuple[int | None, bool]:
    extra = {"packing": asked, "tiers": [{"type": "null"}] * tiers}
    found, options = with_packing(layout(**facts), read_options(extra, events=False), cache)
    assert found.slots_turn_out == options.copying.trial == (asked == "auto" and options.copying.packed)
    return found.geometry.host_block_bytes, options.copying.packed


FP8 = replace(BF16, dtype=torch.uint8)
FP16 = replace(BF16, dtype=torch.float16)
FP32 = replace(BF16, dtype=torch.float32)
STATE = MambaSpec(block_size=16, shapes=((4, 4),), dtypes=(torch.bfloat16,))
IN_THE_WAY = [
    pytest.param(cache_of(FP8), {}, "bfloat16", id="fp8"),
    pytest.param(cache_of(FP16), {}, "float16", id="fp16"),
    pytest.param(cache_of(FP32), {}, "float32", id="fp32"),
    pytest.param(cache_of(BF16, STATE), {}, "state-space", id="states"),
    pytest.param(cache_of(BF16), {"block_bytes": 5000}, "2048 bytes", id="size"),
]


def test_packing_is_off_unless_somebody_says_otherwise() -> None:
    assert DEFAULT_PACKING == "off"
    assert read_options({}, events=False).packing == "off"
    assert decide("off", cache_of(BF16)) == (None, False)


@pytest.mark.parametrize("asked", ["on", "auto"])
def test_a_packed_block_takes_three_quarters_and_its_share_of_the_place_for_others(asked: str) -> None:
    taken, packed = decide(asked, cache_of(BF16))
    assert packed
    assert taken is not None
    assert 1.30 <= BLOCK_BYTES / taken < 1.32


@pytest.mark.parametrize(("cache", "facts", "why"), IN_THE_WAY)
def test_what_cannot_be_packed_is_refused_by_name(cache: Any, facts: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigError, match=rf"packing='on'.*{why}"):
        decide("on", cache, **facts)


@pytest.mark.parametrize(("cache", "facts", "why"), IN_THE_WAY)
def test_what_cannot_be_packed_is_left_as_it_is(cache: Any, facts: dict[str, int], why: str) -> None:
    assert decide("auto", cache, **facts) == (None, False)


@pytest.mark.parametrize(
    "odd",
    [
        replace(BF16, head_size=96, head_size_v=96),
        replace(BF16, head_size_v=96),
        replace(BF16, page_size_padded=BF16.page_size_bytes + 512),
    ],
)
def test_auto_is_off_where_workers_may_find_fragments_that_cannot_be_packed(odd: Any) -> None:
    assert decide("auto", cache_of(odd)) == (None, False)
    assert decide("on", cache_of(odd))[1]


@pytest.mark.parametrize("asked", ["on", "auto"])
def test_tiers_are_not_in_the_way(asked: str) -> None:
    assert decide(asked, cache_of(BF16), tiers=1) == decide(asked, cache_of(BF16))


@pytest.mark.parametrize("is_at_node", [True, False])
def test_memory_that_others_use_too_has_a_place_for_what_does_not_pack_and_nobody_decides_for_them(
    is_at_node: bool, tmp_path: Path
) -> None:
    node: dict[str, object] = {"node": str(tmp_path / "node.sock")} if is_at_node else {}
    shared = layout(replicas=1 if is_at_node else 2)

    def decided(asked: str) -> tuple[Layout, Options]:
        return with_packing(shared, read_options({"packing": asked, **node}, events=False), cache_of(BF16))

    found, options = decided("on")
    assert (options.copying.packed, options.copying.trial) == (True, False)
    assert found.geometry.host_block_bytes == BLOCK_BYTES // 2048 * 1552 + -(-BLOCK_BYTES // 100)
    found, options = decided("auto")
    assert (options.copying.packed, found.geometry.host_block_bytes) == (False, None)
    why = "not of a node" if is_at_node else "ranks that share no host memory"
    assert packing.packing_text(options).startswith("packing is off, which needs ")
    assert why in packing.packing_text(options)
    assert "or write on" in packing.packing_text(options)


def test_the_start_line_says_what_was_decided() -> None:
    def said(asked: str, spec: Any) -> str:
        _, options = with_packing(layout(), read_options({"packing": asked}, events=False), cache_of(spec))
        return packing.packing_text(options)

    assert said("off", BF16) == ""
    assert said("on", BF16) == "packing is on; "
    assert said("auto", BF16) == "whether to pack, the first blocks will show; "
    assert said("auto", FP16).startswith("packing is off, which needs a KV cache of bfloat16")


def test_a_cpu_needs_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "has_compiled", lambda: False)
    with pytest.raises(ConfigError, match="numba"):
        decide("on", cache_of(BF16))


def test_other_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="packing"):
        read_options({"packing": "yes"}, events=False)

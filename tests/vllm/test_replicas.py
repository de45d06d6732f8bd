"""Which ranks hold the same KV (F27)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import ParallelConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec

from kvtide.vllm.replicas import Replicas, replicas_of

SHAPE: dict[str, Any] = {"block_size": 16, "head_size": 8, "dtype": torch.float32}
LATENT = MLAAttentionSpec(num_kv_heads=1, max_tp_shards=1, **SHAPE)
ONE_HEAD = FullAttentionSpec(num_kv_heads=1, **SHAPE)
TWO_HEADS = FullAttentionSpec(num_kv_heads=2, **SHAPE)
WINDOW = SlidingWindowSpec(num_kv_heads=1, sliding_window=64, **SHAPE)
STATE = MambaSpec(block_size=16, shapes=((1,),), dtypes=(torch.float32,))


def replicas(
    *specs: Any, ranks: int = 8, heads: int = 8, hf: dict[str, Any] | None = None, backend: str = "mp", **parallel: Any
) -> Replicas:
    text = SimpleNamespace(**{"num_key_value_heads": heads, **(hf or {})})
    parallel_config = ParallelConfig(tensor_parallel_size=ranks, distributed_executor_backend="mp", **parallel)
    vars(parallel_config)["distributed_executor_backend"] = backend  # it does not take "ray" where Ray is not installed
    return replicas_of(
        SimpleNamespace(
            parallel_config=parallel_config,
            model_config=SimpleNamespace(get_total_num_kv_heads=lambda: heads, hf_text_config=text),
            speculative_config=None,
        ),
        SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs]),
    )


def test_one_rank_has_nothing_in_common_with_others() -> None:
    assert replicas(LATENT, ranks=1) == Replicas()
    assert str(Replicas()) == ""


def test_a_stage_without_attention_has_nothing_in_common_with_others() -> None:
    assert replicas() == Replicas()


def test_all_ranks_have_the_latents_of_mla() -> None:
    found = replicas(LATENT)
    assert found == Replicas(8)
    assert found.sharing == 8
    assert str(found) == ", one copy for every 8 ranks, which hold the same"


def test_each_pipeline_stage_has_layers_of_its_own() -> None:
    assert replicas(LATENT, ranks=4, pipeline_parallel_size=2) == Replicas(4)


@pytest.mark.parametrize(("heads", "count"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_heads_of_which_there_are_fewer_than_ranks_are_on_several(heads: int, count: int) -> None:
    assert replicas(ONE_HEAD, heads=heads) == Replicas(count)
    assert replicas(ONE_HEAD, WINDOW, heads=heads) == Replicas(count)


def test_ranks_with_several_heads_share_none() -> None:
    assert replicas(TWO_HEADS, heads=16) == Replicas()


@pytest.mark.parametrize(
    "hf",
    [
        {"swa_num_key_value_heads": 8},
        {"num_global_key_value_heads": 8},
        {"num_key_value_heads": [4, 4, 8]},
        {"attention_other_setting": {"num_attention_groups": 8}},
        {"block_configs": [{"attention": {"n_heads_in_group": 4}}, {"attention": {"n_heads_in_group": 8}}]},
    ],
    ids=str,
)
def test_a_model_whose_layers_have_different_numbers_of_heads_shares_nothing(hf: dict[str, Any]) -> None:
    assert replicas(ONE_HEAD, heads=4, hf=hf) == Replicas()


def test_another_number_that_is_the_same_does_no_harm() -> None:
    assert replicas(ONE_HEAD, heads=4, hf={"swa_num_key_value_heads": 4, "num_attention_heads": 32}) == Replicas(2)


def test_a_draft_model_with_other_heads_shares_nothing() -> None:
    config = SimpleNamespace(
        parallel_config=ParallelConfig(tensor_parallel_size=4, distributed_executor_backend="mp"),
        model_config=SimpleNamespace(
            get_total_num_kv_heads=lambda: 2, hf_text_config=SimpleNamespace(num_key_value_heads=2)
        ),
        speculative_config=SimpleNamespace(
            draft_model_config=SimpleNamespace(hf_text_config=SimpleNamespace(num_key_value_heads=4))
        ),
    )
    groups = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=ONE_HEAD)])
    assert replicas_of(config, groups) == Replicas()
    config.speculative_config.draft_model_config.hf_text_config.num_key_value_heads = 2
    assert replicas_of(config, groups) == Replicas(2)
    config.speculative_config.draft_tensor_parallel_size = 1
    assert replicas_of(config, groups) == Replicas(), "it is not split over the ranks at all"


def test_latents_that_vllm_does_not_call_replicated_are_not_shared() -> None:
    assert replicas(MLAAttentionSpec(num_kv_heads=1, **SHAPE)) == Replicas()


@pytest.mark.parametrize("other", [STATE, TWO_HEADS])
def test_layers_that_are_split_in_different_ways_are_kept_by_each_rank_and_it_is_said(other: Any) -> None:
    found = replicas(LATENT, other)
    assert (found.ranks, found.sharing) == (8, 1)
    assert "a copy on each of 8 ranks that hold the same: layers of this model are split" in str(found)


def test_what_is_common_to_all_layers_is_shared() -> None:
    assert replicas(LATENT, ONE_HEAD, heads=2) == Replicas(4)


def test_with_context_parallel_each_rank_has_other_tokens() -> None:
    assert replicas(LATENT, decode_context_parallel_size=8) == Replicas()
    found = replicas(LATENT, decode_context_parallel_size=2)
    assert (found.ranks, found.sharing) == (4, 1)
    assert "context parallel" in str(found)


@pytest.mark.parametrize(
    ("parallel", "why"),
    [({"nnodes": 2}, "ranks are on other machines"), ({"backend": "ray"}, "Ray may place")],
)
def test_ranks_on_other_machines_keep_copies_and_it_is_said(parallel: dict[str, Any], why: str) -> None:
    found = replicas(LATENT, **parallel)
    assert (found.ranks, found.sharing) == (8, 1)
    assert why in str(found)

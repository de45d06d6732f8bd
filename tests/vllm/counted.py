"""Settings of vLLM that were decided to be part of a namespace, in all versions: all but `settings_left_out.py`."""

from __future__ import annotations

from collections.abc import Mapping

from kvtide.vllm import settings_left_out

COUNTED: Mapping[str, tuple[settings_left_out.Reasons, tuple[str, ...]]] = {
    "ModelConfig": (
        settings_left_out.MODEL,
        (
            "model_weights",
            "runner",
            "convert",
            "trust_remote_code",
            "hf_config",
            "hf_text_config",
            "code_revision",
            "max_model_len",
            "quantization",
            "quantization_config",
            "disable_sliding_window",
            "enable_prompt_embeds",
            "model_impl",
            "override_attention_dtype",
            "multimodal_config",
            "model_class_overrides",
            "word_embeddings_untied_by_checkpoint",
            "is_submodel_config",
        ),
    ),
    "CacheConfig": (
        settings_left_out.CACHE,
        (
            "block_size",
            "cache_dtype",
            "sliding_window",
            "calculate_kv_scales",
            "kv_cache_dtype_skip_layers",
            "mamba_block_size",
            "mamba_cache_dtype",
            "mamba_ssm_cache_dtype",
            "mamba_cache_mode",
            "kv_cache_layout",
            "kv_sharing_fast_prefill",
            "replayssm_buffer_len",
            "use_replayssm",
            "use_kda_recoverssm",
            "swa_bounded_replay",
        ),
    ),
    "ParallelConfig": (
        settings_left_out.PARALLEL,
        (
            "pipeline_parallel_size",
            "tensor_parallel_size",
            "prefill_context_parallel_size",
            "decode_context_parallel_size",
            "dcp_kv_cache_interleave_size",
            "cp_kv_cache_interleave_size",
            "dcp_q_replicate",
            "enable_hc_sp",
        ),
    ),
    "AttentionConfig": (
        settings_left_out.ATTENTION,
        (
            "flash_attn_version",
            "use_prefill_decode_attention",
            "use_trtllm_attention",
            "mla_prefill_backend",
            "disable_flashinfer_q_quantization",
            "use_prefill_query_quantization",
            "use_fp4_indexer_cache",
            "indexer_kv_dtype",
            "use_non_causal",
            "sparse_mla_force_mqa",
            "minimax_m3_msa_decode_backend",
            "hisparse_config",
            "indexer_sparse_logits",
        ),
    ),
    "LoRAConfig": (
        settings_left_out.LORA,
        (
            "lora_dtype",
            "target_modules",
            "default_mm_loras",
            "enable_tower_connector_lora",
            "enable_mixed_moe_lora_format",
            "enable_moe_shared_loras",
        ),
    ),
    "LoadConfig": (settings_left_out.LOAD, ("model_loader_extra_config", "ignore_patterns")),
    "KernelConfig": (
        settings_left_out.KERNEL,
        (
            "moe_backend",
            "linear_backend",
            "linear_backend_per_quant",
            "sparse_indexer_topk_backend",
            "enable_bf16x3_router_gemm",
        ),
    ),
    "MambaConfig": (
        settings_left_out.MAMBA,
        ("backend", "enable_stochastic_rounding", "stochastic_rounding_philox_rounds"),
    ),
    "MultiModalConfig": (
        settings_left_out.MULTIMODAL,
        (
            "language_model_only",
            "mm_processor_kwargs",
            "mm_encoder_only",
            "mm_encoder_attn_backend",
            "mm_encoder_attn_dtype",
            "mm_encoder_fp8_scale_path",
            "video_pruning_rate",
            "video_pruning_method",
            "mm_device_do_normalize",
            "allow_missing_mm_embeddings",
        ),
    ),
    "SpeculativeConfig": (
        settings_left_out.SPECULATIVE,
        (
            "method",
            "draft_model_config",
            "draft_tensor_parallel_size",
            "tensor_parallel_size",
            "moe_backend",
            "attention_backend",
            "kv_cache_dtype",
            "parallel_drafting",
            "use_heterogeneous_vocab",
            "index_share_for_mtp_iteration",
        ),
    ),
    "DiffusionConfig": ({}, ("canvas_length", "max_denoising_steps")),
}
"""For each class: what is left out, and what was decided to count. A field that is in neither fails these tests."""

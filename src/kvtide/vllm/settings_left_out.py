"""What of vLLM's configuration is no part of a namespace, and why not. Everything else is, also what vLLM adds later.

vLLM's own `compute_hash` leaves out what does not change the compiled graph; here it is what does not change the bytes
of a block. What rounds otherwise and computes the same function counts as the same, as it does within one engine, whose
batches are rounded one way or the other.
"""

from __future__ import annotations

from collections.abc import Mapping

Reasons = Mapping[str, str]
"""Names of fields, with spaces between them, by the reason why they are left out."""

ELSEWHERE = "it is in another part of the namespace, as it was resolved"
NAMES = "a name, a place or a secret, which says nothing about the bytes"
INPUT = "keys are made of tokens and of what else a request has, whatever these were made from"
OUTPUT = "it is about what is made of the hidden states, behind the KV cache"
ROUNDING = "the same function, scheduled, tiled or rounded otherwise"
CAPACITY = "it says how much there is room for or how long things may take, not what is in it"
REPLICAS = "which engine, process, machine or GPU does it; rank and world are parts of their own"
LIFE = "it is about starting, loading, sleeping or watching"

MODEL: Reasons = {
    # A seed draws weights only where these are made up (`weights_part`).
    ELSEWHERE: "model seed revision dtype hf_overrides hf_config_path config_format",
    NAMES: "served_model_name hf_token allow_deprecated_quantization",
    INPUT: """
        tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init allowed_local_media_path allowed_media_domains
        io_processor_plugin renderer_num_workers""",
    OUTPUT: """
        max_logprobs logprobs_mode use_fp64_gumbel return_sampling_mask logits_processors generation_config
        override_generation_config pooler_config enable_return_routed_experts enable_trace_replay
        spec_target_max_model_len""",
    ROUNDING: "enforce_eager disable_cascade_attn",
    LIFE: """
        enable_sleep_mode sleep_mode_backend sleep_preserve_parameter_names sleep_mode_offload_cudagraph
        enable_nccl_comm_suspend enable_cumem_allocator""",
}

CACHE: Reasons = {
    # `block_size` alone is the scheduler's and counts; how it came about does not.
    ELSEWHERE: """
        prefix_caching_hash_algo is_attention_free user_specified_block_size _block_size_resolved
        user_specified_mamba_block_size effective_attention_block_size mamba_page_size_padded skip_page_size_padded
        hash_block_size prefix_match_unit""",
    CAPACITY: """
        gpu_memory_utilization num_gpu_blocks_override num_gpu_blocks num_cpu_blocks kv_cache_size_tokens
        kv_cache_max_concurrency kv_cache_memory_bytes kv_offloading_size kv_offloading_backend""",
    # Which blocks vLLM keeps and finds; a block that it finds is the same either way.
    INPUT: """
        enable_prefix_caching prefix_cache_retention_interval cache_hit_alignment_tokens
        enable_mamba_shared_prefix_checkpoint enable_mamba_fine_grained_prefix_cache""",
}

PARALLEL: Reasons = {
    ELSEWHERE: "world_size rank is_moe_model",
    NAMES: """
        data_parallel_master_ip data_parallel_rpc_port data_parallel_master_port _data_parallel_master_port_list
        _coord_store_port master_addr master_port""",
    REPLICAS: """
        data_parallel_size data_parallel_size_local data_parallel_rank data_parallel_rank_local data_parallel_index
        data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb enable_expert_parallel
        enable_ep_weight_filter enable_eplb eplb_config expert_placement_strategy all2all_backend enable_elastic_ep
        elastic_ep_max_dp_size node_rank nnodes placement_group distributed_executor_backend worker_cls sd_worker_cls
        worker_extension_cls assigned_physical_gpu_ids numa_bind numa_bind_nodes numa_bind_cpus _api_process_count
        _api_process_rank _allow_auto_resolve_cp_interleave_size""",
    OUTPUT: "enable_batch_sharded_sampling",
    ROUNDING: """
        disable_custom_all_reduce enable_dbo ubatch_size dbo_decode_token_threshold dbo_prefill_token_threshold
        disable_nccl_for_dp_synchronization dp_sync_interval dcp_comm_backend enable_shm_tensor_arena""",
    LIFE: """
        max_parallel_loading_workers ray_workers_use_nsight ray_runtime_env distributed_timeout_seconds
        cpu_distributed_timeout_seconds enable_fault_tolerance fault_tolerance_config""",
}

ATTENTION: Reasons = {
    ELSEWHERE: "backend backend_per_kind",
    ROUNDING: """
        flash_attn_max_num_splits_for_cuda_graph tokenspeed_mla_min_split_kv tq_max_kv_splits_for_cuda_graph
        sparse_mla_prefill_workspace_factor flex_attn_block_m flex_attn_block_n flex_attn_q_block_size
        flex_attn_kv_block_size""",
}

MULTIMODAL: Reasons = {
    INPUT: "media_io_kwargs limit_per_prompt enable_mm_embeds interleave_mm_strings mm_hasher_algorithm",
    CAPACITY: """
        mm_processor_cache_gb mm_processor_cache_type mm_shm_cache_max_object_size_mb mm_ipc_gpu_memory_gb
        mm_tensor_ipc""",
    ROUNDING: "mm_encoder_tp_mode",
    LIFE: "skip_mm_profiling mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin",
}

LORA: Reasons = {
    # Adapters themselves are in vLLM's hashes.
    CAPACITY: "max_lora_rank max_loras max_cpu_loras max_lora_cls_labels",
    ROUNDING: "fully_sharded_loras specialize_active_lora",
}

LOAD: Reasons = {
    ELSEWHERE: "load_format",
    LIFE: """
        download_dir safetensors_load_strategy safetensors_prefetch_num_threads safetensors_prefetch_block_size device
        use_tqdm_on_load pt_load_map_location""",
}

KERNEL: Reasons = {
    ROUNDING: "ir_op_priority",
    LIFE: "enable_flashinfer_autotune enable_rocm_segmented_attn_autotune enable_cutedsl_warmup enable_jit_warmup",
}

MAMBA: Reasons = {ROUNDING: "ssu_algorithm"}

SPECULATIVE: Reasons = {
    # Looked at only where a draft model has layers in the KV cache.
    ELSEWHERE: """
        model revision code_revision quantization max_model_len target_model_config target_parallel_config
        draft_load_config""",
    OUTPUT: """
        num_speculative_tokens num_speculative_tokens_per_batch_size use_local_argmax_reduction prompt_lookup_max
        prompt_lookup_min suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests
        suffix_decoding_max_spec_factor suffix_decoding_min_token_prob rejection_sample_method
        synthetic_acceptance_rates synthetic_acceptance_length enable_adaptive_verification draft_sample_method
        dspark_draft_topk""",
    ROUNDING: "enforce_eager disable_padded_drafter_batch draft_parallel_config",
    INPUT: "disable_eagle_block_drop",
}

WHOLE: Reasons = {
    "its outcome is in the quantization, the weights and the files of the model": "quant_config",
    CAPACITY: "scheduler_config offload_config performance_mode shutdown_timeout",
    "the attention backends and the layout in memory are parts": "device_config",
    ROUNDING: "compilation_config optimization_level",
    INPUT: "ec_transfer_config ec_manager_config",
    OUTPUT: "watermark_config structured_outputs_config reasoning_config aux_output_config",
    NAMES: "instance_id",
    LIFE: """
        observability_config logging_config profiler_config kv_transfer_config kv_events_config weight_transfer_config
        engram_config""",
}
"""Of `VllmConfig`: whole configurations that are not looked at."""


def fields_of(reasons: Reasons) -> frozenset[str]:
    """Return the names of all fields that are left out."""
    return frozenset(" ".join(reasons.values()).split())

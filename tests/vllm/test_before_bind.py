"""What vLLM does in a step before it binds the connector's metadata, where compute is made to wait for loads.

Whatever reads or writes KV before that must not meet a load that was announced while its last bytes were on their way
(`versions.reads_before_bind`). So all that comes before is listed here, for every version and both of its runners. When
a test fails on a new version: read what was added. If it touches no KV, or only blocks that are new in this step, put
it on its list. If not, models for which it does must not hear of loads early.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tests.vllm.sources import source
from tests.vllm.test_versions import VERSIONS


@dataclass(frozen=True)
class Runner:
    """One of vLLM's two model runners."""

    path: str
    bind: str
    """The call in `execute_model` that binds the metadata."""
    calls: set[str]
    """All that `execute_model` calls before, and that touches no KV by itself."""


PLAIN = {
    "IntermediateTensors",
    "RuntimeError",
    "all",
    "dict",
    "enumerate",
    "hasattr",
    "int",
    "isinstance",
    "len",
    "list",
    "logger.debug",
    "max",
    "np.array",
    "record_function_or_nullcontext",
    "replace",
    "set_forward_context",
    "torch.inference_mode",
}
"""Python's own, and what goes with every function of vLLM."""

V1 = Runner(
    "v1/worker/gpu_model_runner.py",
    "self.maybe_get_kv_connector_output",
    PLAIN
    | {
        # What the step is made of.
        "num_scheduled_tokens_np.max",
        "scheduler_output.num_scheduled_tokens.copy",
        "scheduler_output.scheduled_spec_decode_tokens.copy",
        "deferred_state_corrections_fn",
        "maybe_create_ubatch_slices",
        "self._allow_microbatching",
        "self._compute_cascade_attn_prefix_lens",
        "self._determine_batch_execution_and_padding",
        "self._dummy_run",  # only without a forward pass of its own
        "self._get_slot_mappings",
        "self._prepare_padding_mask",
        "self.num_accepted_tokens.copy_to_gpu",
        "self.speculative_config.use_ngram_gpu",
        "self.synchronize_input_prep",
        # Its methods are looked at below.
        "self._build_attention_metadata",
        "self._get_mamba_bufs",
        "self._get_mamba_state_copy_funcs",
        "self._prepare_inputs",
        "self._preprocess",
        "self._update_states",
        "self.model.get_mamba_state_copy_func",
        # Other connectors, encoders, experts.
        "get_ec_transfer",
        "get_kv_transfer_group",
        "get_kv_transfer_group().handle_preemptions",
        "has_ec_transfer",
        "has_kv_transfer_group",
        "make_empty_encoder_model_runner_output",
        "self._execute_mm_encoder",
        "self.eplb_state.prepare_forward",
        "self.kv_connector_no_forward",
        "self.maybe_get_ec_connector_output",
        "self.routed_experts_capturer.clear_buffer",
    },
)

V2 = Runner(
    "v1/worker/gpu/model_runner.py",
    "self.kv_connector.pre_forward",
    PLAIN
    | {
        # What the step is made of.
        "InputBatch.make_dummy",
        "build_slot_mappings_by_layer",
        "dispatch_cg_and_sync_dp",
        "get_uniform_token_count",
        "input_batch.input_ids.random_",
        "make_cudagraph_stats",
        "maybe_prepare_dcp_local_seq_lens",
        "prepare_dcp_local_seq_lens",
        "requires_raw_input_tokens",
        "scheduler_output.num_scheduled_tokens.keys",
        "scheduler_output.num_scheduled_tokens.values",
        "self.block_tables.apply_staged_writes",
        "self.intermediate_tensors.tensors.items",
        "self.pcp_manager.get_num_tokens_for_dispatch",
        "self.pcp_manager.prepare_inputs_to_capture",
        "self.step_timing.forward_start",
        "self.step_timing.record_batch",
        "self.ubatch_runner.prepare",
        "set_dummy_context",
        "v[:n].copy_",
        # Its methods are looked at below.
        "self.add_requests",
        "self.finish_requests",
        "self.free_states",
        "self.gather_batch_req_state",
        "self.prepare_attn",
        "self.prepare_dummy_attn",
        "self.prepare_inputs",
        "self.update_pp_decode_requests",
        "self.update_requests",
        # Inputs of the model and metadata of its attention; what it does with states is `preprocess_state`.
        "self.model_state.dummy_inputs_embeds",
        "self.model_state.execute_mm_encoder",
        "self.model_state.get_mm_embeddings",
        "self.model_state.prepare_attn",
        "self.model_state.prepare_inputs",
        "self.model_state.prepare_inputs_embeds",
        # Other connectors, encoders, experts, adapters.
        "ModelRunnerOutput.with_ec_conn_output",
        "get_num_active_loras_for_dispatch",
        "make_empty_encoder_model_runner_output",
        "self._merge_ec_connector_no_forward",
        "self._set_active_loras",
        "self.aux_output_connector.begin_step",
        "self.ec_connector.maybe_get_output",
        "self.eplb.prepare_forward",
        "self.kv_connector.no_forward",
        "self.lora_state.make_lora_inputs",
        "set_active_mm_loras",
    },
)

RUNNERS = {"v1": V1, "v2": V2}

STATES_ONLY = {
    "mamba_utils.preprocess_mamba",
    "mamba_utils.preprocess_mamba_all_specdec",
    "mamba_utils.stage_postprocess_inputs_to_gpu",
    "self.model_state.preprocess_state",
    "copy_kv_cache_blocks_inplace",
}
"""Calls that read KV, only of models with states: those models hear of no load early."""

NEW_BLOCKS_ONLY = {
    "self._zero_block_ids",
    "self._kv_block_zeroer.zero_block_ids",
    "self.kv_block_zeroer.zero_block_ids",
}
"""Calls that write to blocks that this step has allocated. Loads into them begin when this step is bound."""

MEMORY = {"kv_caches", "static_forward_context", "_kv_block_zeroer", "kv_block_zeroer", "mamba_utils"}
"""What gives access to KV: the tensors, the layers that hold them, and what vLLM has to copy and zero them."""

SETS_UP = {
    "mamba_utils.MambaBuffers.create",
    "mamba_utils.get_mamba_groups",
    "mamba_utils.validate_mamba_state_copy_funcs",
}
"""Calls that make buffers once, and touch no KV."""


@cache
def before_bind(version: str, runner: str) -> list[tuple[str, ast.AST]]:
    """Return all that comes before the bind, with the method that it stands in; methods that are called too."""
    tree = ast.parse(source(version, RUNNERS[runner].path))
    [owner] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "GPUModelRunner"]
    methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    binds = [node.lineno for node in nodes_of(methods["execute_model"]) if name_of(node) == RUNNERS[runner].bind]
    assert binds, f"{version}: nothing binds the metadata"
    seen = ["execute_model"]
    found: list[tuple[str, ast.AST]] = []
    for method in seen:  # which grows
        for node in nodes_of(methods[method]):
            if method == "execute_model" and getattr(node, "lineno", 0) >= min(binds):
                continue
            found.append((method, node))
            called = name_of(node).removeprefix("self.")
            if called in methods and called not in seen:
                seen.append(called)
    return found


def nodes_of(method: ast.FunctionDef) -> Iterator[Any]:
    """Yield all nodes of a method's body."""
    return (node for statement in method.body for node in ast.walk(statement))


def name_of(node: ast.AST) -> str:
    """Return the name of what is called; "" if nothing is."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_f7_every_call_before_the_bind_is_known(version: str, runner: str) -> None:
    called = {name_of(node) for method, node in before_bind(version, runner) if method == "execute_model"} - {""}
    assert called <= RUNNERS[runner].calls | STATES_ONLY | NEW_BLOCKS_ONLY


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_f7_only_known_calls_touch_kv_before_the_bind(version: str, runner: str) -> None:
    found = before_bind(version, runner)
    calls = [node for _, node in found if name_of(node) in STATES_ONLY | NEW_BLOCKS_ONLY | SETS_UP]
    assert {name_of(call) for call in calls} & NEW_BLOCKS_ONLY, "the names of what gives access have changed"
    known = {id(node) for call in calls for node in ast.walk(call)}
    known |= {id(node.left) for _, node in found if isinstance(node, ast.Compare)}  # whether it is there at all
    assert [
        f"{method}: {ast.unparse(node)}" for method, node in found if is_memory(node) and id(node) not in known
    ] == []


def is_memory(node: ast.AST) -> bool:
    return (getattr(node, "attr", None) or getattr(node, "id", None)) in MEMORY


@pytest.mark.parametrize("version", VERSIONS)
def test_f7_blocks_are_copied_on_write_only_where_there_are_states(version: str) -> None:
    """Copies are made for hits that end inside a block, and the coordinator allows those with states only."""
    text = source(version, "v1/core/kv_cache_coordinator.py") + source(version, "v1/core/kv_cache_utils.py")
    meanings = {name: value for name, value in meant(text) if name in ALLOWED_BY}
    assert ("kv_cache_block_copies" in source(version, "v1/core/sched/output.py")) == bool(meanings)
    for name, value in meanings.items():
        because = [word for word in ("MambaSpec", *ALLOWED_BY) if word != name and word in value]
        assert because, f"{name} = {value}"


ALLOWED_BY = ("enable_partial_hash_hits", "has_partial_mamba_group", "partial_hash_hits_enabled")
"""Whether a hit may end inside a block: each because of the next one, or because there is a `MambaSpec`."""


def meant(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is assigned to each name, or what the function of that name is, if it is not just False."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) != "False":
            yield ast.unparse(node.targets[0]).rpartition(".")[2], ast.unparse(node.value)
        elif isinstance(node, ast.FunctionDef):
            yield node.name, ast.unparse(node)


@pytest.mark.parametrize("version", VERSIONS)
def test_f7_only_models_with_states_have_something_to_do_before(version: str) -> None:
    """The first runner asks how states are cached, the second one asks the model's state, of which there are four."""
    tree = ast.parse(source(version, V1.path))
    guards = {
        ast.unparse(node.test)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "mamba_utils.preprocess_mamba(" in ast.unparse(node)
    }
    assert "self.cache_config.mamba_cache_mode == 'align'" in guards
    states = "v1/worker/gpu/model_states/"
    kinds = set(re.findall(r"model_states\.(\w+) import", source(version, states + "__init__.py")))
    assert kinds <= {"interface", "default", "encoder_decoder", "encoder_only", "mamba_hybrid"}
    for kind in kinds - {"interface", "mamba_hybrid"}:
        assert "def preprocess_state" not in source(version, f"{states}{kind}.py")

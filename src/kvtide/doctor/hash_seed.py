"""PYTHONHASHSEED: whether the next process computes the same keys, for tiers and nodes that outlive it (F23)."""

from __future__ import annotations

from kvtide.doctor.base import Finding, bad, ok, warning
from kvtide.doctor.machine import Machine
from kvtide.doctor.software import find_vllm
from kvtide.tiers.namespace import unstable_keys

VLLM_DEFAULT_HASH = "sha256"
_WHERE, _FIXED_SEED = "v1/core/kv_cache_utils.py", "DEFAULT_NONE_HASH_SEED"


def check_hash_seed(machine: Machine, outlived: bool) -> Finding:
    """Say whether vLLM's block hashes are the same in the next process, with the hash that vLLM takes by itself.

    `outlived`: there are tiers or a node, whose blocks the next process wants to find.
    """
    seed = machine.environ.get("PYTHONHASHSEED")
    found = "PYTHONHASHSEED is not set" if seed is None else f"PYTHONHASHSEED={seed}"
    if not outlived:
        return ok(f"{found}; it matters to tiers and to a node only, and there are none")
    vllm = find_vllm(machine)
    if seed is not None:
        return ok(f"{found}: it has to be the same for all servers that share blocks")
    if vllm is None:
        return warning(
            found, "set it to the same number for all servers that share blocks, for example PYTHONHASHSEED=0"
        )
    source = vllm.folder / _WHERE
    fixed = source.is_file() and _FIXED_SEED in source.read_text(encoding="utf-8")
    why = unstable_keys(VLLM_DEFAULT_HASH, seed, has_fixed_seed=fixed)
    if why is None:
        return ok(f"{found}, and this vLLM does not need it, except with --prefix-caching-hash-algo xxhash")
    reason, _, fix = why.partition(": ")
    return bad(f"{found}, and {reason}: with tiers or a node the server would not start", fix)

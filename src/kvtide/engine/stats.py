"""What the engine did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Counts since the engine was made."""

    steps: int = 0
    prefill_tokens: int = 0
    """Tokens computed that were known before: prompts, and what was recomputed after a preemption."""
    decode_tokens: int = 0
    """Tokens computed one by one, each after it was generated."""
    device_hit_tokens: int = 0
    loaded_tokens: int = 0
    preemptions: int = 0
    loads_failed: int = 0
    """Requests whose load failed and that were computed instead."""
    forward_s: float = 0.0
    store_s: float = 0.0
    """Seconds that copies to the host took, all ranks together."""
    load_s: float = 0.0
    store_bytes: int = 0
    load_bytes: int = 0
    saved_bytes: int = 0
    """So many bytes less were copied, both ways, because blocks are packed."""

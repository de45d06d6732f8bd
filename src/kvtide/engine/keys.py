"""Content keys: what a block of a prefix is called, in this and in every other process."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import pack

from kvtide.core.groups import Key
from kvtide.engine.config import EngineConfig
from kvtide.tiers.namespace import Namespace

KEY_BYTES = 16


def namespace(config: EngineConfig) -> Key:
    """Return the root of all keys: it says everything that the bytes of a block depend on (F23).

    The number of ranks is not part of it: it only says how the bytes are shared out.
    """
    text = f"{config.model!r} block_tokens={config.block_tokens} {config.kv_dtype}"
    return blake2b(text.encode(), digest_size=KEY_BYTES).digest()


def tier_namespace(config: EngineConfig) -> Namespace:
    """Return all that bytes below host memory depend on."""
    return Namespace(
        model=repr(config.model),
        weights=f"seed {config.model.seed}",
        dtype=config.kv_dtype,
        layout="layers, keys and values, tokens, heads",
        groups=repr(config.groups),
        block_bytes=config.geometry().block_bytes,
        attention="numpy",
        hashing="blake2b",
        world=config.ranks,
    )


def extend_keys(keys: list[Key], tokens: Sequence[int], block_tokens: int, root: Key) -> None:
    """Append the keys of the full blocks of `tokens` that `keys` does not have yet.

    Each key hashes the one before it, so it stands for the whole prefix.
    """
    for end in range((len(keys) + 1) * block_tokens, len(tokens) + 1, block_tokens):
        parent = keys[-1] if keys else root
        content = pack(f"<{block_tokens}q", *tokens[end - block_tokens : end])
        keys.append(blake2b(parent + content, digest_size=KEY_BYTES).digest())

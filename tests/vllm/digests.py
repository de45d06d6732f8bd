"""Bytes of blocks, made short enough to compare them between processes."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any


def digest(content: bytes) -> str:
    """Return what no two different blocks have in common."""
    return blake2b(content, digest_size=8).hexdigest()


def on_device(side: Any) -> list[str]:
    """Return a digest of each of one rank's blocks. `side`: its half of the connector."""
    return [digest(b"".join(fragments)) for fragments in _fragments(side)]


def wipe(_worker: Any) -> None:
    """Write zeros to all blocks of one rank: what is there afterwards was computed or loaded afterwards."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415 (in a worker)

    for fragments in _fragments(get_kv_transfer_group()._worker):
        for fragment in fragments:
            fragment.fill(0)


def keys_on_device(pool: Any) -> list[str | None]:
    """Return what vLLM has in each block of its device; None: nothing that could be found."""
    return [None if block.block_hash is None else block.block_hash.hex() for block in pool.blocks]


def by_key(keys: list[str | None], digests: list[str]) -> dict[str, str]:
    """Return the digests of blocks that have a key."""
    return {key: digest for key, digest in zip(keys, digests, strict=True) if key is not None}


def _fragments(side: Any) -> list[list[Any]]:
    """Return the device's blocks, each as the places that it lies at."""
    return [
        [
            stripe.memory[stripe.offset + block * stripe.block_stride :][: stripe.block_stride].numpy()
            for stripe in side._stripes
        ]
        for block in range(side._kv_cache_config.num_blocks)
    ]

"""From tokens to prefix hashes, for traces that carry text or token ids."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import pack

HASH_BYTES = 8


def prefix_hashes(tokens: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """Return one hash for each block of `tokens`, the last of which may be only partly filled.

    Each hash contains the one before it. Eight bytes are enough to tell the blocks of a trace apart.
    """
    hashes = []
    before = b""
    for begin in range(0, len(tokens), block_tokens):
        block = tokens[begin : begin + block_tokens]
        before = blake2b(before + pack(f"<{len(block)}q", *block), digest_size=HASH_BYTES).digest()
        hashes.append(int.from_bytes(before, "little"))
    return tuple(hashes)

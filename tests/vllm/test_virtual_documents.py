"""Documents that are asked for all at once, in virtual time: nobody who copies their bytes can be much faster."""

from __future__ import annotations

import pytest

from tests.vllm.virtual_documents import ANSWER_TOKENS, COPIES, DOCUMENTS, ROOM, at_once
from tests.vllm.virtual_engine import TOKEN_BYTES


@pytest.mark.parametrize("heads", [8, 1])
@pytest.mark.parametrize("copies", COPIES)
def test_documents_at_once_are_near_their_bound(copies: str, heads: int) -> None:
    token_bytes = TOKEN_BYTES * heads // 8
    found = at_once(decode_ms=8.0, copy_bytes_per_s=COPIES[copies], token_bytes=token_bytes)
    assert found.steps >= DOCUMENTS // ROOM * ANSWER_TOKENS
    assert found.bound_s <= found.done_s <= 1.04 * found.bound_s

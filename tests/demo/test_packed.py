"""The demo with packing: the same tokens from fewer bytes."""

from __future__ import annotations

from kvtide.copy.packing import TILE_BYTES, TILE_VALUES
from kvtide.demo.packed import RUNS, compare_packed
from kvtide.demo.report import sentences, table
from tests.demo.support import tiny


def test_packed_blocks_change_no_token_and_take_three_quarters_of_the_bytes() -> None:
    comparison = compare_packed(tiny(packing=True, block_tokens=16, host="320KiB"), lambda run, done: None)
    plain, packed = (comparison.results[run] for run in ("plain", "packed"))
    assert tuple(comparison.results) == RUNS
    assert comparison.identical_outputs
    assert packed.loaded_tokens > plain.loaded_tokens
    # A busy machine may store more in one run than in the other, but all of it in whole blocks.
    block_bytes = comparison.settings.engine(1).geometry().block_bytes
    assert plain.stored_bytes % block_bytes == 0
    assert packed.stored_bytes % (block_bytes // (2 * TILE_VALUES) * TILE_BYTES) == 0
    assert f"{packed.loaded_tokens:,} prompt tokens with blocks packed" in sentences(comparison)
    assert "stored\nMiB" in [column.header for column in table(comparison).columns]

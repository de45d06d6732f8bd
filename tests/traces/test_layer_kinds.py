"""Which layers of a config.json are full attention: what planning says of those that are not."""

from __future__ import annotations

import pytest

from kvtide.traces.layer_kinds import PartlyFull, partly_full

WINDOW = {"sliding_window": 1024}


def full(count: int, other: str, others: int) -> dict[str, object]:
    return {"layer_types": ["full_attention"] * count + [other] * others}


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        (full(10, "sliding_attention", 52), 10),
        (full(0, "sliding_attention", 62), 0),
        (full(12, "linear_attention", 50), 12),
        (full(12, "chunked_attention", 50), 12),
        (full(10, "sliding_attention", 3), None),  # a list of another length
        (full(10, "hybrid", 52), None),  # nobody here knows what that is
        ({"layers_block_type": ["attention"] * 2 + ["mamba"] * 60}, 2),
        ({**WINDOW, "sliding_window_pattern": 6}, 10),
        ({**WINDOW, "sliding_window_pattern": "LLLG"}, None),
        (WINDOW, None),
        ({**WINDOW, "max_position_embeddings": 131_072}, None),
        ({"attention_chunk_size": 8192}, None),
        ({"attn_layer_period": 8}, None),
        ({"mamba_d_state": 128}, None),
    ],
)
def test_layers_that_do_not_keep_everything_are_noticed(fields: dict[str, object], number: int | None) -> None:
    found = partly_full(fields, 62)
    assert found is not None
    assert (found.layers, found.full) == (62, number)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sliding_window": None, "attention_chunk_size": None, "layer_types": None},
        {**WINDOW, "use_sliding_window": False},
        {**WINDOW, "max_position_embeddings": 1024},
        {**full(62, "", 0), **WINDOW},  # the list knows more than the window
        full(0, "indexed_attention", 62),
    ],
)
def test_where_all_layers_are_full_nothing_is_said(fields: dict[str, object]) -> None:
    assert partly_full(fields, 62) is None


def test_what_is_said_has_the_kv_of_the_full_layers_if_there_are_any() -> None:
    said = PartlyFull(62, 10, "layer_types: 52 sliding_attention").text("gemma", 62 << 13)
    assert said == (
        "all 62 layers of gemma are taken as full attention, and only 10 are (layer_types: 52 sliding_attention): "
        "this is too much KV. That of the 10 alone is --bytes-per-token '80 KiB'"
    )
    for number in (0, None):
        assert PartlyFull(62, number, "sliding_window 1024").text("gemma", 62 << 13) == (
            "all 62 layers of gemma are taken as full attention, and perhaps not all are (sliding_window 1024): this "
            "may be too much KV (--bytes-per-token)"
        )

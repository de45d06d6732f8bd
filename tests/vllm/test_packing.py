"""Packed blocks on vLLM's CPU build: the same outputs from fewer bytes, on the host and on a disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvtide.copy.packing import TILE_BYTES, TILE_VALUES
from tests.vllm.elsewhere import run_elsewhere
from tests.vllm.fixtures import PROMPTS
from tests.vllm.node_rig import NodeProcess
from tests.vllm.test_round_trip import hit

EXPECTED = [hit(tokens) for tokens in PROMPTS[1:4]]


def run(model: Path, folder: Path, *turns: str) -> Any:
    folder.mkdir(exist_ok=True)
    return run_elsewhere("packed_engines", model, folder, *turns)


def outputs(turn: Any) -> list[Any]:
    return [[tokens, logprobs] for tokens, logprobs, _ in turn]


def cached(turn: Any) -> list[int]:
    return [tokens for *_, tokens in turn]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packed") / "tier"


@pytest.fixture(scope="module")
def first(llama: Path, folder: Path) -> Any:
    return run(llama, folder, "on")["on"]


@pytest.fixture(scope="module")
def second(llama: Path, folder: Path, first: Any) -> Any:
    """What engines find that are started where the first one has left its blocks."""
    assert first["sunk_blocks"] > 0
    return run(llama, folder, "off", "on")


def test_outputs_with_packing_are_those_without(first: Any, second: Any) -> None:
    off = second["off"]
    for one in (first, second["on"]):
        for turn in ("computed", "loaded"):
            assert outputs(one[turn]) == outputs(off[turn])
    assert cached(first["computed"]) == [0] * len(EXPECTED)
    assert cached(first["loaded"]) == cached(off["loaded"]) == EXPECTED


def test_blocks_take_the_room_of_packed_ones(first: Any, second: Any) -> None:
    off = second["off"]
    assert first["slot_bytes"] * 2 * TILE_VALUES == off["slot_bytes"] * TILE_BYTES
    assert first["slots"] >= 1.3 * off["slots"] - 1
    assert first["stored_bytes"] == first["stored_blocks"] * first["slot_bytes"]
    assert first["saved_bytes"] == first["stored_blocks"] * (first["block_bytes"] - first["slot_bytes"])
    assert (first["unpacked_blocks"], first["not_stored"]) == (0, {})


def test_what_packing_saves_is_told_to_vllm(first: Any, second: Any) -> None:
    told = first["told"]
    assert told["packing_saved_bytes/store"] == first["saved_bytes"] > 0
    loaded_blocks, rest = divmod(told["transfer_bytes/load"], first["slot_bytes"])
    assert rest == 0
    assert told["packing_saved_bytes/load"] == loaded_blocks * (first["block_bytes"] - first["slot_bytes"]) > 0
    assert "unpacked_blocks" not in told, "all of them pack"
    assert not [name for name in second["off"]["told"] if "pack" in name]


def test_a_tier_has_packed_bytes_and_gives_them_to_the_next_engine(first: Any, second: Any) -> None:
    assert first["put_bytes"] == first["sunk_blocks"] * first["slot_bytes"]
    assert cached(second["on"]["computed"]) == EXPECTED
    assert second["on"]["fetched_blocks"] > 0


def test_f23_packed_blocks_in_a_tier_are_not_found_by_an_engine_that_does_not_pack(second: Any) -> None:
    assert cached(second["off"]["computed"]) == [0] * len(EXPECTED)
    assert second["off"]["fetched_blocks"] == 0


def test_where_nothing_packs_what_there_is_a_place_for_comes_back_and_the_rest_is_counted(
    llama: Path, tmp_path: Path, second: Any
) -> None:
    said = run(llama, tmp_path / "tier", "nothing-packs")["nothing-packs"]
    for turn in ("computed", "loaded"):
        assert outputs(said[turn]) == outputs(second["off"][turn])
    assert said["stored_blocks"] > 0
    assert said["unpacked_blocks"] >= said["stored_blocks"] + said["not_stored"]["unpacked_full"]
    assert said["told"]["unpacked_blocks"] == said["unpacked_blocks"]
    assert sum(cached(said["loaded"])) > 0
    assert said["put_bytes"] == said["sunk_blocks"] * said["block_bytes"] > 0
    assert len([line for line in said["lines"] if "has no place left for blocks that do not pack" in line]) == 1


def test_auto_packs_where_the_first_blocks_do(llama: Path, tmp_path: Path, second: Any) -> None:
    said = run(llama, tmp_path / "tier", "auto")["auto"]
    for turn in ("computed", "loaded"):
        assert outputs(said[turn]) == outputs(second["off"][turn])
    assert said["slots_ready"] == said["slots"] > second["off"]["slots"]
    assert said["saved_bytes"] > 0
    assert cached(said["loaded"]) == EXPECTED
    assert not said["not_stored"]
    assert said["put_bytes"] == said["sunk_blocks"] * said["slot_bytes"] > 0
    (line,) = said["lines"]
    assert re.search(r"packing is on: of the first \d+ blocks 0 do not pack, and there is room for 1.\d+ times", line)


def test_auto_leaves_blocks_as_they_are_where_the_first_ones_do_not_pack(
    llama: Path, tmp_path: Path, second: Any
) -> None:
    said, again = (run(llama, tmp_path / "tier", "auto-nothing-packs")["auto-nothing-packs"] for _ in range(2))
    for one in (said, again):
        for turn in ("computed", "loaded"):
            assert outputs(one[turn]) == outputs(second["off"][turn])
    assert 0.95 * second["off"]["slots"] - 2 <= said["slots_ready"] <= second["off"]["slots"]
    assert cached(said["loaded"]) == EXPECTED
    assert not said["not_stored"]
    (line,) = said["lines"]
    assert re.search(r"packing is off: of the first (\d+) blocks \1 do not pack", line)
    # And what was sunk as it is, the next engine finds.
    assert said["put_bytes"] == said["sunk_blocks"] * said["block_bytes"] > 0
    assert again["fetched_blocks"] > 0
    assert cached(again["computed"])[1:] == EXPECTED[1:], again["not_loaded"]


def assert_other_finds_all(one: Any, other: Any, off: Any) -> None:
    """Outputs are those without packing, and what the first engine has stored the other one loads at once."""
    for said in (one, other):
        for turn in ("computed", "loaded"):
            assert outputs(said[turn]) == outputs(off[turn])
        assert cached(said["loaded"]) == EXPECTED
    assert cached(one["computed"]) == [0] * len(EXPECTED)
    assert cached(other["computed"]) == EXPECTED


def test_engines_that_pack_share_packed_blocks_at_a_node(llama: Path, tmp_path: Path, second: Any) -> None:
    node = NodeProcess(tmp_path / "node.sock", tmp_path / "node.log")
    try:
        one, other = (run(llama, tmp_path, "on-node")["on-node"] for _ in range(2))
        (namespace,) = node.status()["namespaces"]
    finally:
        node.stop()
    assert_other_finds_all(one, other, second["off"])
    packed = one["block_bytes"] // (2 * TILE_VALUES) * TILE_BYTES
    assert (one["stored_bytes"], one["unpacked_blocks"]) == (one["stored_blocks"] * packed, 0)
    assert [arena["slot_bytes"] for arena in namespace["arenas"]] == [packed]


def test_blocks_that_do_not_pack_have_a_place_at_a_node_and_another_engine_finds_them(
    llama: Path, tmp_path: Path, second: Any
) -> None:
    node = NodeProcess(tmp_path / "node.sock", tmp_path / "node.log", memory="128MiB")
    try:
        one = run(llama, tmp_path, "nothing-packs-node")["nothing-packs-node"]
        other = run(llama, tmp_path, "on-node")["on-node"]
    finally:
        node.stop()
    assert_other_finds_all(one, other, second["off"])
    assert (one["unpacked_blocks"], one["saved_bytes"]) == (one["stored_blocks"], 0)
    assert not one["not_stored"]

"""Two real ranks that hold the same KV at a real node: one part, and the memory of one rank (F27)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm.digests import by_key
from tests.vllm.fixtures import PROMPTS
from tests.vllm.llm import BLOCK_TOKENS, engine
from tests.vllm.node_rig import EngineProcess, NodeProcess, wait_until
from tests.vllm.test_round_trip import assert_same, hit

ASKED = PROMPTS[:4]
EXPECTED = [hit(tokens) for tokens in ASKED]


@pytest.fixture(scope="module")
def alone(one_head: Path) -> dict[str, Any]:
    """What one rank says, and keeps."""
    with engine(one_head, options={"host": "4MiB"}) as offloading:
        results = offloading.generate(*ASKED)
        offloading.drain()
        geometry, cached = offloading.side.config.geometry, offloading.manager.gauges().slots_cached
        return {"results": results, "cached": cached, "block_bytes": geometry.block_bytes}


@pytest.fixture(scope="module")
def seen(one_head: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("node")
    node = NodeProcess(folder / "node.sock", folder / "node.log", memory="4MiB")
    two = EngineProcess(one_head, node.path, folder / "engine.log", ranks=2)
    try:
        two.wait_for_start()
        wait_until(lambda: may_store(two, node), "the engine uses all slots")
        seen: dict[str, Any] = {"computed": two.say(*ASKED, forget=False)}
        seen |= {"device, computed": two.ask(look=True), "blocks": node.blocks()}
        two.ask(wipe=True)
        seen |= {"loaded": two.say(*ASKED, forget=False), "device, loaded": two.ask(look=True)}
        seen |= {"ranks": seen["device, loaded"]["ranks"]}
        seen |= {"status": node.status(), "code": two.stop()}
        wait_until(lambda: not node.status()["engines"], "the engine is gone")
        seen["after"] = node.status()
    finally:
        if two.process.poll() is None:
            two.kill()
        node.kill()
    return seen


def may_store(engine: EngineProcess, node: NodeProcess) -> bool:
    """Whether both ranks have all of the node's memory. They get it in steps; this one has too little to store."""
    engine.say(ASKED[0][:4])
    return [space["slots"] - space["free"] for space in node.status()["namespaces"]] == [0]


def test_f27_two_ranks_at_a_node_say_what_one_says_computed_and_loaded(
    seen: dict[str, Any], alone: dict[str, Any]
) -> None:
    for turn in ("computed", "loaded"):
        assert_same(seen[turn].results, alone["results"])
        assert seen[turn].numbers["failed"] == [0, 0]
    assert seen["loaded"].cached == EXPECTED
    assert seen["code"] == 0


def test_f27_the_node_keeps_one_part_and_as_many_bytes_as_for_one_rank(
    seen: dict[str, Any], alone: dict[str, Any]
) -> None:
    [space] = seen["status"]["namespaces"]
    [arena] = space["arenas"]
    assert (arena["part"], arena["slot_bytes"]) == (0, alone["block_bytes"])
    assert space["cached"] == alone["cached"]
    assert space["slots"] == (4 << 20) // alone["block_bytes"]
    inodes = {one["inode"] for rank in seen["ranks"] for one in rank["mapped"]}
    assert len(inodes) == 1, "both map the same memory"


def test_f27_every_byte_is_written_once_and_loaded_by_both(seen: dict[str, Any], alone: dict[str, Any]) -> None:
    stored = [rank["stored_bytes"] for rank in seen["ranks"]]
    assert sum(stored) == alone["cached"] * alone["block_bytes"]
    assert min(stored) > sum(stored) // 4
    assert len({rank["loaded_bytes"] for rank in seen["ranks"]}) == 1


def blocks_by_key(device: dict[str, Any], rank: int) -> dict[str, str]:
    """Return digests of what one rank has on its device."""
    return by_key(device["keys"], device["ranks"][rank]["on_device"])


@pytest.mark.parametrize("rank", [0, 1])
def test_f27_the_bytes_at_the_node_are_those_that_either_rank_has_computed(seen: dict[str, Any], rank: int) -> None:
    computed = blocks_by_key(seen["device, computed"], rank)
    assert sorted(computed.values()) == seen["blocks"]


@pytest.mark.parametrize("rank", [0, 1])
def test_f27_either_rank_loads_for_each_key_the_bytes_that_it_had_computed(seen: dict[str, Any], rank: int) -> None:
    """Answers would not tell: attention does not care in which order the blocks of a prompt lie."""
    computed = blocks_by_key(seen["device, computed"], rank)
    assert blocks_by_key(seen["device, loaded"], rank) == computed
    assert len(computed) == sum(EXPECTED) // BLOCK_TOKENS


def test_nothing_is_left_at_the_node_when_both_ranks_have_gone(seen: dict[str, Any]) -> None:
    [space] = seen["after"]["namespaces"]
    assert (space["leased"], space["writing"], space["quarantined"]) == (0, 0, 0)

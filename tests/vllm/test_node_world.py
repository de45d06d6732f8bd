"""Engines at one node: vLLM's real scheduler and block pool, kvtide's real workers, and a node in its own process.

Every token that attention would read is looked at (see world.py), wherever it was computed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvtide.copy.cuda import CudaCache, CudaCopyEngine, CudaRegion, Route
from kvtide.core.index import lives
from kvtide.vllm import kv_tensors, node_namespace, versions
from kvtide.vllm.kv_tensors import Copier, Stripe
from kvtide.vllm.options import Copying
from kvtide.vllm.worker_side import WorkerSide
from tests.copy.cuda.fake_gpu import FakeGpu
from tests.node.real_node import be_patient
from tests.vllm.node_rig import NodeProcess, wait_until
from tests.vllm.world import BLOCK_TOKENS, World, full, latent, sliding, text

BLOCKS = 6
PROMPT = text(1, BLOCKS * BLOCK_TOKENS + 3)
HIT = BLOCKS * BLOCK_TOKENS
BLOCK_BYTES = 256

Make = Callable[..., World]

patient = pytest.fixture(autouse=True)(be_patient)


class Nodes:
    """Starts nodes at one socket, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "node.sock"
        self._log = folder / "node.log"
        self.node: NodeProcess | None = None

    def start(self) -> NodeProcess:
        self.node = NodeProcess(self.path, self._log, memory="64KiB")
        return self.node

    def stop(self) -> None:
        if self.node is not None and self.node.process.poll() is None:
            assert self.node.stop() == 0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.stop()


@pytest.fixture
def make(tmp_path: Path, nodes: Nodes) -> Iterator[Make]:
    """Makes engines. At the end they come to rest, shut down, and the node holds nothing of them any more."""
    worlds: list[World] = []

    def make(**arguments: Any) -> World:
        worlds.append(World(tmp_path, node=nodes.path, **arguments))
        return worlds[-1]

    yield make
    for world in worlds:
        if isinstance(world.workers[0]._worker, WorkerSide):
            world.run()
            world.check_at_rest()
            shut_down(world)
    if nodes.node is not None and nodes.node.process.poll() is None:
        check_holds_nothing(nodes.node)


def shut_down(world: World) -> None:
    for connector in (*world.workers, world.connector):
        connector.shutdown()


def check_holds_nothing(node: NodeProcess) -> None:
    wait_until(lambda: not node.status()["engines"], "no engine is left at the node")
    for space in node.status()["namespaces"]:
        assert (space["leased"], space["writing"], space["quarantined"]) == (0, 0, 0)


def attach(world: World) -> None:
    """Step until all ranks have the memory of the node."""

    def is_ready() -> bool:
        world.step()
        return bool(world.side._node.index._lives.has_memory)

    wait_until(is_ready, "the engine attaches")


def revisit(world: World, name: str, tokens: list[int] = PROMPT) -> int:
    """Run a request of which the device holds nothing; return how many tokens came from the host."""
    world.evict_device()
    return world.generate(name, tokens)


def test_f25_what_one_engine_has_computed_the_other_one_loads(nodes: Nodes, make: Make) -> None:
    node = nodes.start()
    first, second = make(), make()
    assert first.generate("a", PROMPT) == 0
    assert second.generate("b", PROMPT) == HIT
    longer = PROMPT + text(2, 2 * BLOCK_TOKENS)
    assert revisit(second, "c", longer) == HIT
    assert revisit(first, "d", longer) == HIT + 2 * BLOCK_TOKENS
    [space] = node.status()["namespaces"]
    assert space["description"]["parts"] == [BLOCK_BYTES]
    assert len(node.status()["engines"]) == 2


def test_f26_an_engine_that_is_started_again_finds_all_that_was_there(nodes: Nodes, make: Make) -> None:
    nodes.start()
    make().generate("a", PROMPT)
    assert make().generate("b", PROMPT) == HIT, "in its first request"


def test_an_engine_that_has_rested_waits_for_the_node_as_any_other(nodes: Nodes, make: Make) -> None:
    nodes.start()
    make().generate("a", PROMPT)
    rested = make()
    rested.side._overdue._told_s -= 60.0
    assert rested.generate("b", PROMPT) == HIT


def test_time_is_told_once_in_each_step_before_anything_is_asked_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    told: list[str] = []
    for name in ("passed", "match", "plan"):
        call = getattr(engine.manager, name)

        def spy(*given: Any, name: str = name, call: Any = call, **more: Any) -> Any:
            told.append(name)
            return call(*given, **more)

        monkeypatch.setattr(engine.manager, name, spy)
    for name in ("a", "b"):
        engine.add(name, PROMPT[:20])
    engine.step()
    engine.step()
    assert told == ["passed", "match", "match", "plan", "passed", "plan"]


def test_models_with_several_groups_share_too(nodes: Nodes, make: Make) -> None:
    nodes.start()
    groups = [full(), sliding(40)]
    make(groups=groups).generate("a", PROMPT)
    assert make(groups=groups).generate("b", PROMPT) == HIT


def test_in_lazy_mode_what_the_device_gives_up_is_found_by_the_other_engine(nodes: Nodes, make: Make) -> None:
    nodes.start()
    first, second = make(mode="lazy"), make(mode="lazy")
    first.generate("a", PROMPT)
    for number in range(12):  # short ones: the node has time to answer before the device needs the room
        first.generate(f"other {number}", text(10 + number, 2 * BLOCK_TOKENS))
    assert second.generate("b", PROMPT) == HIT


def test_in_lazy_mode_a_device_that_has_room_for_little_more_than_one_request_loses_nothing_of_several_groups(
    nodes: Nodes, make: Make
) -> None:
    """Asking the node takes a step: so much earlier blocks have to be asked for."""
    nodes.start()
    groups = [full(), sliding(40)]
    first, second = make(mode="lazy", groups=groups), make(mode="lazy", groups=groups)
    first.generate("a", PROMPT)
    for number in range(2):
        first.generate(f"other {number}", text(10 + number, 10 * BLOCK_TOKENS))
    assert first.manager.metrics.not_stored == {}
    assert second.generate("b", PROMPT) == HIT


def test_f27_ranks_that_hold_the_same_have_one_part_and_take_the_memory_of_one(nodes: Nodes, make: Make) -> None:
    node = nodes.start()
    alike = make(groups=[latent()], tensor_parallel=2)
    assert alike.generate("a", PROMPT) == 0
    assert revisit(alike, "b") == HIT
    [space] = node.status()["namespaces"]
    [arena] = space["arenas"]
    assert (arena["part"], arena["slot_bytes"]) == (0, BLOCK_BYTES)
    sides: list[Any] = [worker._worker for worker in alike.workers]
    stored = [side.copy_stats().store.bytes for side in sides]
    assert sum(stored) == space["cached"] * BLOCK_BYTES
    assert min(stored) > 0, "each stores its share"


def test_ranks_that_hold_different_heads_have_a_part_each(nodes: Nodes, make: Make) -> None:
    node = nodes.start()
    apart = make(tensor_parallel=2)
    apart.generate("a", PROMPT)
    assert revisit(apart, "b") == HIT
    [space] = node.status()["namespaces"]
    assert [arena["part"] for arena in space["arenas"]] == [0, 1]


def test_f29_an_engine_serves_while_its_node_is_dead_and_comes_back_to_the_next_one(nodes: Nodes, make: Make) -> None:
    node = nodes.start()
    engine = make()
    engine.generate("a", PROMPT)
    node.kill()
    assert revisit(engine, "b") == 0
    assert engine.manager.metrics.not_loaded["node_away"] >= HIT
    nodes.start()
    attach(engine)
    assert revisit(engine, "c") == 0, "nothing of another life of the node is there"
    assert revisit(engine, "d") == HIT
    check_one_life(engine)


def test_an_engine_that_rests_notices_with_its_next_request_that_the_node_has_gone(nodes: Nodes, make: Make) -> None:
    """As docs/users/node.md says."""
    node = nodes.start()
    engine = make()
    engine.generate("a", PROMPT)
    node.kill()
    assert engine.side._node.is_attached
    check_one_life(engine)
    assert revisit(engine, "b") == 0
    assert not engine.side._node.is_attached
    assert engine.manager.metrics.not_loaded["node_away"] == len(PROMPT)
    wait_until(lambda: not mapped(), "memory of the dead node is given back")


def check_one_life(world: World) -> None:
    """Old memory is given back."""
    wait_until(lambda: len(mapped()) == len(world.workers), "memory of earlier lives is unmapped")


def mapped() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:kvtide" in line]


def test_an_engine_that_was_started_without_a_node_attaches_when_it_comes(nodes: Nodes, make: Make) -> None:
    engine = make()
    assert engine.generate("a", PROMPT) == 0
    assert revisit(engine, "b") == 0
    nodes.start()
    attach(engine)
    revisit(engine, "c")
    assert revisit(engine, "d") == HIT


def test_a_node_that_is_stopped_in_good_order_is_let_go_of(nodes: Nodes, make: Make) -> None:
    node = nodes.start()
    engine = make()
    engine.generate("a", PROMPT)
    node.process.terminate()
    while node.process.poll() is None:
        engine.step()
        time.sleep(0.01)
    assert node.process.returncode == 0
    assert revisit(engine, "b") == 0


def test_f9_after_a_reset_an_engine_shares_with_nobody_and_others_keep_what_they_have(nodes: Nodes, make: Make) -> None:
    node = nodes.start()
    changed, other = make(), make()
    changed.generate("a", PROMPT)
    changed.new_weights()
    changed.run()
    assert changed.generate("b", PROMPT) == 0, "that was computed with the old weights"
    assert other.generate("c", PROMPT) == HIT
    wait_until(lambda: "shares nothing with the others: private is" in node.lines(), "the node says so")


def test_f23_engines_whose_block_hashes_differ_share_nothing_and_both_logs_say_why(
    nodes: Nodes, make: Make, vllm_log: pytest.LogCaptureFixture
) -> None:
    node = nodes.start()
    first = make()
    first.generate("a", PROMPT)
    other = make(engine_args={"prefix_caching_hash_algo": "sha256_cbor"})
    assert other.generate("b", PROMPT) == 0
    wait_until(lambda: "hashing is" in node.lines(), "the node says so")
    first.generate("c", PROMPT)
    assert 'has come, and shares nothing with this one: hashing is "sha256, python' in vllm_log.text
    for log in (node.lines(), vllm_log.text):
        assert "shares nothing with the other" in log
        assert 'hashing is "sha256_cbor", not "sha256, python' in log


def test_before_an_engine_sleeps_its_copies_end_and_when_it_wakes_up_it_goes_on(nodes: Nodes, make: Make) -> None:
    nodes.start()
    engine = make()
    engine.generate("a", PROMPT)
    assert all(worker.settle(5.0) for worker in engine.workers)
    assert revisit(engine, "b") == HIT


def test_a_worker_with_another_layout_is_refused_by_name_and_its_engine_serves_without(
    nodes: Nodes, make: Make, monkeypatch: pytest.MonkeyPatch, vllm_log: pytest.LogCaptureFixture
) -> None:
    node = nodes.start()
    make().generate("a", PROMPT)
    known = node_namespace.known_by_worker
    monkeypatch.setattr(
        "kvtide.vllm.memory_at_node.known_by_worker", lambda *what: {**known(*what), "layout": "another"}
    )
    monkeypatch.setattr(lives, "ATTACH_S", 1.0)  # nothing comes, however long it waits
    other = make()
    assert other.generate("b", PROMPT) == 0
    why = "holds other bytes than those who were here first: in part 0, layout is"

    def is_refused() -> bool:
        other.step()
        return why in node.lines() and why in vllm_log.text

    wait_until(is_refused, "the node has an answer for the worker")
    assert revisit(other, "c") == 0


def test_numbers_of_host_memory_are_left_out_and_it_is_said_whether_the_node_is_there(nodes: Nodes, make: Make) -> None:
    node = nodes.start()
    engine = make()
    engine.generate("a", PROMPT)
    told = gauges(engine)
    assert told["node_attached"] == 1
    assert not {"slots", "slots_free", "slots_cached"} & told.keys()
    node.kill()
    engine.generate("b", PROMPT)
    assert gauges(engine)["node_attached"] == 0


def gauges(world: World) -> dict[str, float]:
    world.side._stats._next_s = 0.0
    stats = world.side.take_stats()
    found: dict[str, float] = stats.data["gauges"]
    return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU that exists only in the tests, whose copy engine is the real one."""
    gpu = FakeGpu(1)

    def make_copier(stripes: list[Stripe], blocks: int, _: Copying) -> Copier:
        regions = [
            CudaRegion(gpu.adopt(stripe.memory.numpy()) + stripe.offset, stripe.block_stride, stripe.block_stride)
            for stripe in stripes
        ]
        cache = CudaCache(regions, blocks=blocks)
        engine = partial(CudaCopyEngine, cache, gpu=gpu, route=Route.STAGED, staging_bytes=1024)
        return Copier(cache.block_bytes, None, engine)

    monkeypatch.setattr(kv_tensors, "make_copier", make_copier)
    monkeypatch.setattr(versions, "reads_before_bind", lambda _: True)  # numpy does not wait for streams
    return gpu


def test_on_a_gpu_the_memory_of_a_node_is_pinned_meanwhile_and_that_of_a_dead_one_given_back(
    nodes: Nodes, make: Make, gpu: FakeGpu
) -> None:
    node = nodes.start()
    first, second = make(), make()
    for world in (first, second):
        attach(world)
    first.generate("a", PROMPT)
    assert second.generate("b", PROMPT) == HIT
    assert gpu.pinned
    node.kill()
    for world in (first, second):
        assert revisit(world, f"without {id(world)}") == 0
    nodes.start()
    for world in (first, second):
        attach(world)
    revisit(first, "c")
    assert revisit(second, "d") == HIT
    for world in (first, second):
        shut_down(world)
    assert not gpu.pinned


@pytest.mark.parametrize("seed", range(3))
def test_conversations_that_hop_between_engines_read_what_was_computed_whoever_dies(
    nodes: Nodes, make: Make, seed: int
) -> None:
    draw = random.Random(seed)
    node = nodes.start()
    worlds = [make(blocks=48), make(blocks=48, asynchronous=True)]
    histories = [text(100 + seed * 10 + number, draw.randrange(5, 60)) for number in range(4)]
    for turn in range(24):
        number = draw.randrange(len(histories))
        world = draw.choice(worlds)
        world.add(f"turn {turn}", histories[number], draw.randrange(1, 6))
        for _ in range(draw.randrange(12)):
            world.step()
        if draw.random() < 0.15:
            world.run()
            world.evict_device()
        if draw.random() < 0.1:
            node.kill()
            node = nodes.start()
        histories[number] = (histories[number] + text(1000 + turn, draw.randrange(1, 50)))[:200]
    for world in worlds:
        world.run()

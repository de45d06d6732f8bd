"""Several engines and several machines: what is compared with a machine's memory, and whose folder is whose."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from vllm.config import ParallelConfig

from kvtide.copy.memory_left import MemoryLeft
from kvtide.core import FullAttention, Geometry
from kvtide.errors import ConfigError
from kvtide.vllm import options
from kvtide.vllm.options import read_options
from kvtide.vllm.placement import Placement, placement_of
from kvtide.vllm.replicas import Replicas
from kvtide.vllm.start_line import start_line
from tests.vllm.llm import engine

GIB = 2**30


def geometry(ranks: int, parts: int | None = None) -> Geometry:
    return Geometry(groups=(FullAttention(16),), block_bytes=2**20, device_blocks=8, ranks=ranks, parts=parts)


def machine(monkeypatch: pytest.MonkeyPatch, *, left: int, total: int) -> None:
    monkeypatch.setattr(options, "memory_left", lambda: MemoryLeft(left, "this machine has left"))
    monkeypatch.setattr(options, "memory_limit", lambda: total)


def on_nodes(nodes: int, **arguments: Any) -> ParallelConfig:
    return ParallelConfig(nnodes=nodes, distributed_executor_backend="mp", **arguments)


def test_an_engine_alone_has_all_ranks_here() -> None:
    assert placement_of(ParallelConfig()) == Placement(0, 1, 1)
    assert placement_of(on_nodes(1, tensor_parallel_size=4)) == Placement(0, 1, 4)


def test_ranks_on_other_machines_are_not_compared_with_the_memory_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, left=10 * GIB, total=12 * GIB)
    placement = placement_of(on_nodes(2, tensor_parallel_size=4))
    assert placement.ranks_here == 2
    config = read_options({"host": "16GiB"}, events=False, placement=placement).build(geometry(4))
    assert config.host_bytes == 16 * GIB
    with pytest.raises(ConfigError, match=f"host='24GiB': expected at most the {10 * GIB} bytes"):
        read_options({"host": "24GiB"}, events=False, placement=placement).build(geometry(4))
    with pytest.raises(ConfigError, match="host='16GiB'"):
        read_options({"host": "16GiB"}, events=False, placement=Placement(0, 1, 4)).build(geometry(4))


def test_f27_memory_that_ranks_share_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, left=10 * GIB, total=12 * GIB)
    options = read_options({"host": "8GiB"}, events=False, placement=Placement(0, 1, 8))
    config = options.build(geometry(8, parts=2))
    assert (config.slots, options.bytes_here(config)) == (4096, 8 * GIB)
    assert options.where(config) == ""
    with pytest.raises(ConfigError, match=f"host='11GiB': expected at most the {10 * GIB} bytes"):
        read_options({"host": "11GiB"}, events=False, placement=Placement(0, 1, 8)).build(geometry(8, parts=1))


def test_f27_the_start_line_says_how_many_copies_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, left=10 * GIB, total=12 * GIB)
    options = read_options({"host": "8GiB"}, events=False)
    shared = start_line(options.build(geometry(8, parts=1)), options, Replicas(8))
    assert "8 GiB of host memory (8192 blocks of 1 MiB, one copy for every 8 ranks, which hold the same)" in shared
    apart = start_line(options.build(geometry(8)), options, Replicas(8, "ranks are on other machines"))
    assert "(1024 blocks of 1 MiB on each of 8 ranks, a copy on each of 8 ranks that hold the same: ranks are" in apart
    assert "cop" not in start_line(options.build(geometry(8)), options, Replicas())


def test_each_engine_of_one_of_two_machines_counts_its_ranks_there() -> None:
    parallel = on_nodes(2, tensor_parallel_size=2, data_parallel_size=4, data_parallel_size_local=2)
    assert placement_of(parallel) == Placement(0, 2, 2, among_others=True)


@pytest.mark.parametrize(("nodes", "here"), [("aabb", 2), ("abbb", 1), ("bbbb", 1), ("aaaaaa", 4)])
def test_ranks_that_ray_has_placed_elsewhere_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, nodes: str, here: int
) -> None:
    ray, util = ModuleType("ray"), ModuleType("ray.util")
    vars(ray).update(get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "a"))
    vars(util).update(placement_group_table=lambda group: {"bundles_to_node_id": dict(enumerate(group))})
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", util)
    parallel = on_nodes(1, tensor_parallel_size=4)
    parallel.distributed_executor_backend = "ray"
    parallel.placement_group = nodes
    assert placement_of(parallel).ranks_here == here


def test_where_ray_does_not_answer_only_what_is_certain_is_compared() -> None:
    parallel = on_nodes(1, tensor_parallel_size=4)
    parallel.distributed_executor_backend = "ray"
    assert placement_of(parallel).ranks_here == 1
    parallel.placement_group = SimpleNamespace()
    assert placement_of(parallel).ranks_here == 1


def independent(index: int, local: int) -> ParallelConfig:
    """Return what vLLM leaves of the configuration in an engine of a model without experts."""
    parallel = ParallelConfig(data_parallel_size=4, data_parallel_size_local=2)
    parallel.data_parallel_index = index
    parallel.data_parallel_rank_local = local
    parallel.reconfigure_for_independent_dp_rank()
    return parallel


def test_the_last_engine_of_a_machine_knows_how_many_there_are() -> None:
    assert placement_of(independent(2, 0)) == Placement(2, 1, 1, among_others=True)
    assert placement_of(independent(3, 1)) == Placement(3, 2, 1, among_others=True)


def test_the_first_engine_knows_from_its_id_that_there_are_others() -> None:
    assert placement_of(independent(0, 0), "1234_dp0").among_others
    assert not placement_of(ParallelConfig(), "1234").among_others


def test_what_all_engines_take_is_compared_with_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, left=10 * GIB, total=16 * GIB)
    one, two = (placement_of(independent(index, index)) for index in (0, 1))
    read_options({"host": "9GiB"}, events=False, placement=one).build(geometry(1))
    with pytest.raises(ConfigError, match=r"host='9GiB'.*2 engines \(--data-parallel-size\) together"):
        read_options({"host": "9GiB"}, events=False, placement=two).build(geometry(1))
    read_options({"host": "8GiB"}, events=False, placement=two).build(geometry(1))


def test_the_start_line_says_that_each_engine_takes_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, left=100 * GIB, total=100 * GIB)
    for placement, said in (
        (Placement(), ""),
        (Placement(1, 2, 1, among_others=True), "; engine 1, each takes as much: 2 or more here, 16 GiB"),
        (Placement(0, 1, 2), ", 4 GiB on this machine"),
    ):
        read = read_options({"host": "8GiB"}, events=False, placement=placement)
        config = read.build(geometry(4 if placement.ranks_here == 2 else 1))
        assert read.where(config) == said


def disk(path: str) -> dict[str, Any]:
    return {"tiers": [{"type": "disk", "path": path, "size": "64MiB"}]}


def test_a_path_may_contain_the_number_of_the_engine(tmp_path: Path) -> None:
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
        placement = placement_of(independent(index, index))
        [tier] = read_options(disk(f"{tmp_path}/{{dp_rank}}"), events=False, placement=placement).tiers
        assert tier.place == str(tmp_path / str(index))
    with pytest.raises(ConfigError, match=rf"mkdir -p {tmp_path}/3"):
        read_options(disk(f"{tmp_path}/{{dp_rank}}"), events=False, placement=Placement(3, 2, 1))


def test_engines_that_would_share_a_folder_are_refused_and_told_how_not_to(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"tiers\[0\].path.*for example {tmp_path}/{{dp_rank}}"):
        read_options(disk(f"{tmp_path}/"), events=False, placement=placement_of(independent(1, 1)))
    alone_on_its_machine = placement_of(independent(2, 0))
    assert read_options(disk(str(tmp_path)), events=False, placement=alone_on_its_machine).tiers


def test_an_engine_uses_the_folder_of_its_number(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    with engine(llama, options=disk(f"{tmp_path}/{{dp_rank}}")):
        assert (tmp_path / "0" / "rank-0-of-1").is_dir()

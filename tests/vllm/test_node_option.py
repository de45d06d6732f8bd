"""The option `node`: what vLLM says to it before anything is loaded, and what an engine says of itself to a node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtide.core import FullAttention, Geometry
from kvtide.node.hello import HELLO_BYTES_MAX, Hello, Role, read_hello
from kvtide.node.namespaces import name_of, unlike
from kvtide.vllm.layout import read_layout
from kvtide.vllm.node_namespace import engine_name, known_by_worker, namespace_at_node
from kvtide.vllm.options import Options, read_options
from kvtide.vllm.replicas import Replicas
from kvtide.vllm.start_line import start_line
from tests.vllm.test_early_check import arguments_of, refused
from tests.vllm.world import full, latent, make_kv_cache_config

GEOMETRY = Geometry(groups=(FullAttention(16),), block_bytes=2**20, device_blocks=100)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "node.sock")


def test_what_means_nothing_beside_a_node_stops_the_server_at_once(llama: Path, path: str) -> None:
    [wrong] = refused(arguments_of(llama, {"node": path, "host": "1MiB"}))
    assert wrong.startswith("host='1MiB': expected no such option beside node: the memory is the node's")
    [wrong] = refused(arguments_of(llama, {"node": "/dev/null/node.sock"}))
    assert wrong == "node='/dev/null/node.sock': expected the socket of a node; what it is said to be in is no folder"


def test_a_node_that_is_not_there_yet_is_no_error_for_one_engine_or_for_two(llama: Path, path: str) -> None:
    for engines in (1, 2):
        arguments_of(llama, {"node": path}, data_parallel_size=engines).create_engine_config()
    arguments_of(llama, {"node": f"{path}/run/node.sock"}).create_engine_config()  # nor its folder


def test_ranks_on_other_machines_are_refused_beside_a_node(llama: Path, path: str) -> None:
    two = {"nnodes": 2, "node_rank": 0, "tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    [wrong] = refused(arguments_of(llama, {"node": path}, **two))
    assert wrong == (
        f"node={path!r}: expected an engine whose ranks are all on the machine of its node: ranks are on other machines"
    )


def test_f23_keys_that_differ_in_each_process_are_refused_beside_a_node(
    llama: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    [wrong] = refused(arguments_of(llama, {"node": path}, prefix_caching_hash_algo="xxhash"))
    assert wrong.startswith(f"node={path!r}: expected keys that outlive a process")


def at_node(path: str) -> Options:
    return read_options({"node": path}, events=True)


def test_no_memory_is_taken_and_no_events_are_kept_beside_a_node(path: str) -> None:
    options = at_node(path)
    assert options.core == {}
    assert options.too_much(1) is None
    config = options.build(GEOMETRY)  # more than any machine has would be refused
    assert (config.slots, config.events) == (800, False)


def test_the_start_line_names_the_node_and_no_sizes_that_are_not_known(path: str) -> None:
    options = at_node(path)
    line = start_line(options.build(GEOMETRY), options, Replicas(2))
    assert f"host memory and tiers of the node at {path} (blocks of 1 MiB, one copy for every 2 ranks" in line
    assert "800" not in line
    assert "policy" not in line


# ------------------------------------------------------------------ who shares with whom


def description(model: Path, *, layers: Any = None, packed: bool = False, **arguments: Any) -> dict[str, Any]:
    config = arguments_of(model, {}, dtype="float32", block_size=16, **arguments).create_engine_config()
    kv_cache = make_kv_cache_config([layers or full()], 8)
    layout = read_layout(config, kv_cache)
    if packed:
        layout = replace(layout, geometry=replace(layout.geometry, block_bytes=4096, host_block_bytes=3145))
    said = namespace_at_node(config, kv_cache, layout)
    hello = Hello(Role.SCHEDULER, engine=engine_name(config), namespace=said)
    assert len(hello.frame().body) < HELLO_BYTES_MAX // 4
    assert read_hello(hello.frame()) == hello, "it survives the way"
    found: dict[str, Any] = json.loads(json.dumps(said))
    return found


def test_f23_engines_that_pack_share_nothing_with_those_that_do_not(llama: Path) -> None:
    plain, packed = description(llama), description(llama, packed=True)
    assert name_of(plain) != name_of(packed)
    assert "kvtide.packing" in unlike(packed, [plain])
    assert (packed["parts"], packed["rows"]) == ([2 * 1552], [4096])
    assert "rows" not in plain


def test_f23_engines_that_pack_in_another_version_of_the_format_share_nothing(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = description(llama, packed=True)
    monkeypatch.setattr("kvtide.vllm.node_namespace.NAMESPACE_PART", ("kvtide.packing", "bf16/2"))
    theirs = description(llama, packed=True)
    assert name_of(ours) != name_of(theirs)
    assert unlike(theirs, [ours]) == 'kvtide.packing is "bf16/2", not "bf16/1"'


def test_engines_alike_share_whatever_their_names_sizes_and_numbers(llama: Path) -> None:
    one = description(llama)
    others: dict[str, Any] = {"served_model_name": "other", "max_num_seqs": 3, "seed": 7, "num_gpu_blocks_override": 9}
    assert name_of(one) == name_of(description(llama, **others))
    assert name_of(one) == name_of(description(llama, data_parallel_size=2))
    assert name_of(one) == name_of(description(llama, distributed_executor_backend="mp"))
    assert one["parts"] == [256]
    assert one["groups"] == [{"kind": "FullAttention", "block_tokens": 16}]


def test_f23_engines_whose_block_hashes_differ_share_nothing_and_it_can_be_said_why(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    plain = description(llama)
    other = description(llama, prefix_caching_hash_algo="sha256_cbor")
    assert unlike(other, [plain]) == 'hashing is "sha256_cbor", not "sha256, python 3.11"'
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    assert unlike(description(llama), [plain]).startswith('hashing is "sha256, seed ')


def test_f27_ranks_that_hold_the_same_are_one_part(llama: Path) -> None:
    assert description(llama, layers=latent(), tensor_parallel_size=2)["parts"] == [256]
    assert description(llama, layers=full(), tensor_parallel_size=2)["parts"] == [256, 256]


def test_engines_have_names_of_their_own(llama: Path) -> None:
    configs = [arguments_of(llama, {}, served_model_name="a/chat\n").create_engine_config() for _ in range(2)]
    names = {engine_name(config) for config in configs}
    assert len(names) == 2
    assert all(name.startswith("chat ") and name.isprintable() for name in names)


def test_what_only_a_worker_knows_is_the_layout_the_backend_and_the_size(llama: Path) -> None:
    config = arguments_of(llama, {}).create_engine_config()
    said = known_by_worker(config, make_kv_cache_config([full()], 8), 256, "x" * 1000)
    assert said.keys() == {"block_bytes", "layout", "attention"}
    assert len(str(said["layout"])) == 400

"""Several engines at one server: they share what they may, and nothing else."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from kvtide.tiers import HIT, MISS, Item, Namespace, Verdict
from kvtide.tiers.record import HEADER_BYTES
from tests.contracts.tier_contract import block, clear, get, key, lookup, put, room, verdicts
from tests.tiers.shared.servers import Server, until
from tests.tiers.shared.support import fresh_namespace, record_names, valkey_tier


def test_one_engine_reads_what_the_other_wrote(server: Server) -> None:
    namespace = fresh_namespace()
    with valkey_tier(server.url, namespace) as one, valkey_tier(server.url, namespace) as other:
        assert put(one, [Item(key(number), block(number)) for number in range(5)]) == (HIT,) * 5
        wanted = [Item(key(number), room()) for number in range(5)]
        assert get(other, wanted) == (HIT,) * 5
        assert all(item.buffer == block(number) for number, item in enumerate(wanted))


def test_blocks_survive_the_engine_that_wrote_them(server: Server) -> None:
    namespace = fresh_namespace()
    with valkey_tier(server.url, namespace) as first:
        put(first, [Item(key(1), block(1))])
    with valkey_tier(server.url, namespace) as second:
        assert get(second, [Item(key(1), room())]) == (HIT,)


@pytest.mark.parametrize(
    "part", ["weights", "dtype", "layout", "groups", "block_bytes", "attention", "hashing", "world", "rank"]
)
def test_f23_another_namespace_is_never_read(server: Server, part: str) -> None:
    namespace = fresh_namespace()
    changed: dict[str, Any] = {part: 7 if isinstance(getattr(namespace, part), int) else "other"}
    with valkey_tier(server.url, namespace) as one:
        put(one, [Item(key(1), block(1))])
        with valkey_tier(server.url, replace(namespace, **changed)) as other:
            assert lookup(other, [key(1)]) == (MISS,)
            assert verdicts(get(other, [Item(key(1), room())])) == [Verdict.MISS]
            assert clear(other) == HIT
        assert lookup(one, [key(1)]) == (HIT,)


def test_blocks_of_another_format_are_left_alone_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with Server() as own:
        own.raw.hset("kvtide:2:namespaces", "digest", "{}")
        own.raw.set("kvtide:2:digest:generation:key", "a block")
        with valkey_tier(own.url, fresh_namespace()) as tier:
            assert lookup(tier, [key(1)]) == (MISS,)
            assert put(tier, [Item(key(1), block(1))]) == (HIT,)
        assert own.raw.get("kvtide:2:digest:generation:key") == b"a block"
        (line,) = caplog.messages
    assert f"{own.socket}?db=0 has blocks of format 2, and this version of kvtide has 1: they are not read" in line


@pytest.mark.parametrize("damage", ["not JSON", "another type"])
def test_a_damaged_marker_is_one_line_and_nothing_worse(caplog: pytest.LogCaptureFixture, damage: str) -> None:
    with Server() as own:
        if damage == "not JSON":
            own.raw.hset("kvtide:1:namespaces", "00ff", "{half a manif")
        else:
            own.raw.set("kvtide:1:namespaces", "somebody's own")
        with valkey_tier(own.url, fresh_namespace()) as tier:
            assert put(tier, [Item(key(1), block(1))]) == (HIT,)
            assert get(tier, [Item(key(1), room())]) == (HIT,)
        (line,) = caplog.messages
        assert "kvtide:1:namespaces in unix://" in line
        assert "cannot be read and is not relied on" in line
        if damage == "another type":
            assert own.raw.get("kvtide:1:namespaces") == b"somebody's own", "what is not ours is not overwritten"


def test_f23_the_log_says_which_part_differs(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    namespace = replace(fresh_namespace(), model="f23")
    with valkey_tier(server.url, namespace), caplog.at_level(logging.WARNING):
        with valkey_tier(server.url, namespace):
            assert not caplog.records
        with valkey_tier(server.url, replace(namespace, dtype="bfloat16")):
            (line,) = caplog.records
        with valkey_tier(server.url, replace(namespace, rank=1, world=2)):
            assert len(caplog.records) == 1  # another rank is no mismatch
    assert 'dtype: stored "float32", now "bfloat16"' in line.message
    assert "f23" in line.message


def test_f9_a_clear_is_seen_by_the_other_engine(server: Server) -> None:
    namespace = fresh_namespace()
    with valkey_tier(server.url, namespace) as one, valkey_tier(server.url, namespace) as other:
        put(one, [Item(key(1), block(1))])
        assert lookup(other, [key(1)]) == (HIT,)
        assert clear(one) == HIT
        assert verdicts(get(other, [Item(key(1), room())])) == [Verdict.MISS]
        assert verdicts(lookup(other, [key(1)])) == [Verdict.MISS]


def test_f9_after_a_clear_both_share_again(server: Server) -> None:
    namespace = fresh_namespace()
    with valkey_tier(server.url, namespace) as one, valkey_tier(server.url, namespace) as other:
        put(other, [Item(key(1), block(1))])
        clear(one)
        lookup(other, [key(1)])  # notices
        assert put(other, [Item(key(1), block(2))]) == (HIT,)
        wanted = Item(key(1), room())
        assert get(one, [wanted]) == (HIT,)
        assert wanted.buffer == block(2)


def test_f9_what_an_engine_wrote_without_knowing_of_the_clear_is_not_read(server: Server) -> None:
    namespace = fresh_namespace()
    with valkey_tier(server.url, namespace) as one, valkey_tier(server.url, namespace) as other:
        put(other, [Item(key(1), block(1))])
        clear(one)
        assert verdicts(put(other, [Item(key(2), block(2))])) == [Verdict.MISS]
        assert lookup(one, [key(1), key(2)]) == (MISS, MISS)
        assert record_names(server.raw, namespace) == []


def generation_copies(client: Any, namespace: Namespace) -> list[bytes]:
    return sorted(client.scan_iter(match=f"kvtide:*{namespace.digest.hex()}:generation-*"))


def test_copies_of_the_generation_that_were_evicted_are_put_back(server: Server) -> None:
    namespace = fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, namespace) as one:
        put(one, [Item(key(1), block(1))])
        copies = generation_copies(client, namespace)
        assert len(copies) > 1
        client.delete(*copies[1:])
        assert get(one, [Item(key(1), room())]) == (HIT,)
        assert generation_copies(client, namespace) == copies
        client.delete(*copies[:-1])
        assert lookup(one, [key(1)]) == (HIT,)
        assert generation_copies(client, namespace) == copies


def test_f9_copies_of_the_generation_that_do_not_agree_begin_a_new_one(server: Server) -> None:
    namespace = fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, namespace) as one, valkey_tier(server.url, namespace) as other:
        put(one, [Item(key(1), block(1))])
        client.set(generation_copies(client, namespace)[0], "0123456789abcdef")
        assert verdicts(get(one, [Item(key(1), room())])) == [Verdict.MISS]
        assert put(one, [Item(key(1), block(2))]) == (HIT,)
        assert verdicts(lookup(other, [key(1)])) == [Verdict.MISS]
        assert get(other, [Item(key(1), room())]) == (HIT,)


def test_f9_a_server_that_lost_the_generation_brings_nothing_back(server: Server) -> None:
    namespace = fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, namespace) as one:
        put(one, [Item(key(1), block(1))])
        client.delete(*generation_copies(client, namespace))
        assert verdicts(get(one, [Item(key(1), room())])) == [Verdict.MISS]
        assert verdicts(lookup(one, [key(1)])) == [Verdict.MISS]
        assert put(one, [Item(key(1), block(2))]) == (HIT,)
        wanted = Item(key(1), room())
        assert get(one, [wanted]) == (HIT,)
        assert wanted.buffer == block(2)


def test_a_clear_gives_the_memory_back_and_leaves_others_alone(server: Server) -> None:
    namespace, neighbour = fresh_namespace(), fresh_namespace()
    client = server.raw
    client.set("somebody else's", "value")
    with valkey_tier(server.url, namespace) as one, valkey_tier(server.url, neighbour) as other:
        put(one, [Item(key(number), block(number, 16)) for number in range(3000)])
        put(other, [Item(key(1), block(1))])
        assert len(record_names(client, namespace)) == 3000
        assert clear(one) == HIT
        assert record_names(client, namespace) == []
        assert len(record_names(client, neighbour)) == 1
    assert client.get("somebody else's") == b"value"


def test_a_time_to_live_is_passed_on(server: Server) -> None:
    namespace = fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, namespace, ttl_s=1000) as tier:
        put(tier, [Item(key(1), block(1))])
        (name,) = record_names(client, namespace)
        assert 0 < client.ttl(name) <= 1000


def test_connections_are_as_many_as_threads_and_gone_after_close(server: Server) -> None:
    def connections() -> set[str]:
        return {client["id"] for client in server.raw.client_list()}

    # The server may not have noticed yet that those of an earlier test were closed.
    earlier = connections()
    with valkey_tier(server.url, threads=3) as tier:
        for ticket in range(60):
            assert tier.put(ticket, [Item(key(ticket), block(ticket))])
            assert tier.lookup(100 + ticket, [key(ticket)])
        while tier.wait(10) and tier.poll():
            pass
        own = connections() - earlier
        assert 0 < len(own) <= 3
    until(lambda: not own & connections())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvtide-valkey")]


def test_records_are_a_header_and_the_bytes(server: Server) -> None:
    namespace = fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, namespace) as tier:
        put(tier, [Item(key(1), block(1))])
        (name,) = record_names(client, namespace)
        assert client.get(name)[HEADER_BYTES:] == block(1)

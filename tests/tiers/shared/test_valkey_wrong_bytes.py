"""Values that changed in the server, or replies that got mixed up, are misses: never other bytes (F8)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from kvtide.tiers import HIT, MISS, Item, Verdict
from kvtide.tiers.record import HEADER_BYTES
from tests.contracts.tier_contract import BLOCK_BYTES, block, get, key, lookup, put, room, verdicts
from tests.tiers.shared.servers import Server
from tests.tiers.shared.support import fresh_namespace, record_names, valkey_tier


def flip(at: int) -> Callable[[bytes], bytes]:
    def change(value: bytes) -> bytes:
        return value[:at] + bytes([value[at] ^ 0x10]) + value[at + 1 :]

    return change


DAMAGES = {
    "a bit of the magic": flip(0),
    "a bit of the namespace": flip(10),
    "a bit of the key": flip(30),
    "a bit of the length": flip(61),
    "a bit of the header's checksum": flip(HEADER_BYTES - 1),
    "a bit of the first byte": flip(HEADER_BYTES),
    "a bit of the last byte": flip(HEADER_BYTES + BLOCK_BYTES - 1),
    "the last byte is gone": lambda value: value[:-1],
    "half of it is gone": lambda value: value[: len(value) // 2],
    "only the header is left": lambda value: value[:HEADER_BYTES],
    "half of the header is left": lambda value: value[:64],
    "nothing is left": lambda value: b"",
    "a byte more": lambda value: value + b"x",
    "much more": lambda value: value + bytes(100_000),
    "all zero": lambda value: bytes(len(value)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_f8_a_damaged_record_is_a_miss_a_count_and_a_line_with_its_key(
    server: Server, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    namespace = fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, namespace) as tier:
        put(tier, [Item(key(number), block(number)) for number in range(3)])
        name = next(name for name in record_names(client, namespace) if name.endswith(key(1).hex().encode()))
        client.set(name, damage(client.get(name)))
        wanted = [Item(key(number), room()) for number in range(3)]
        with caplog.at_level(logging.WARNING):
            assert verdicts(get(tier, wanted)) == [Verdict.HIT, Verdict.MISS, Verdict.HIT]
        assert [wanted[0].buffer, wanted[2].buffer] == [block(0), block(2)]
        assert tier.stats().corrupt_records == 1
        assert [key(1).hex() in record.message for record in caplog.records] == [True]
        assert lookup(tier, [key(1)]) == (MISS,)
        assert put(tier, [Item(key(1), block(1))]) == (HIT,)
        assert get(tier, [Item(key(1), room())]) == (HIT,)


def test_f8_records_swapped_between_two_keys_are_misses(server: Server) -> None:
    namespace = fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, namespace) as tier:
        put(tier, [Item(key(1), block(1)), Item(key(2), block(2))])
        one, other = record_names(client, namespace)
        first, second = client.mget(one, other)
        client.mset({one: second, other: first})
        results = get(tier, [Item(key(1), room()), Item(key(2), room())])
        assert verdicts(results) == [Verdict.MISS] * 2


def test_f8_a_record_of_another_namespace_under_our_name_is_a_miss(server: Server) -> None:
    ours, theirs = fresh_namespace(), fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, ours) as tier, valkey_tier(server.url, theirs) as other:
        put(tier, [Item(key(1), block(1))])
        put(other, [Item(key(1), block(2))])
        client.copy(record_names(client, theirs)[0], record_names(client, ours)[0], replace=True)
        assert verdicts(get(tier, [Item(key(1), room())])) == [Verdict.MISS]


def test_a_value_of_another_type_is_a_miss_and_is_replaced(server: Server) -> None:
    namespace = fresh_namespace()
    client = server.raw
    with valkey_tier(server.url, namespace) as tier:
        put(tier, [Item(key(1), block(1)), Item(key(2), block(2))])
        name = next(name for name in record_names(client, namespace) if name.endswith(key(1).hex().encode()))
        client.delete(name)
        client.rpush(name, "not", "a", "string")
        assert verdicts(get(tier, [Item(key(1), room()), Item(key(2), room())])) == [Verdict.MISS, Verdict.HIT]
        assert put(tier, [Item(key(1), block(1))]) == (HIT,)
        assert get(tier, [Item(key(1), room())]) == (HIT,)

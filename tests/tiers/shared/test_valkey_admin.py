"""What operators see and do: inspect, verify, clear."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvtide.errors import ConfigError
from kvtide.tiers import HIT, Item, Verdict
from kvtide.tiers.record import HEADER_BYTES
from kvtide.tiers.valkey import clear, inspect, verify
from tests.contracts.tier_contract import BLOCK_BYTES, block, get, key, lookup, put, room, verdicts
from tests.tiers.shared.servers import Server
from tests.tiers.shared.support import fresh_namespace, record_names, valkey_tier


@pytest.fixture
def own() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_inspect_counts_records_by_namespace(own: Server) -> None:
    one, other = fresh_namespace(), fresh_namespace()
    own.raw.set("somebody else's", "value")
    with valkey_tier(own.url, one) as tier, valkey_tier(own.url, other) as second:
        put(tier, [Item(key(number), block(number)) for number in range(5)])
        put(second, [Item(key(1), block(1))])
        found = inspect(own.url, {})
    size = BLOCK_BYTES + HEADER_BYTES
    assert (found["records"], found["bytes"]) == (6, 6 * size)
    assert found["cleared"] == {"records": 0, "bytes": 0}
    assert isinstance(found["namespaces"], list)
    counts = {each["manifest"]["model"]: (each["records"], each["bytes"]) for each in found["namespaces"]}
    assert counts == {one.model: (5, 5 * size), other.model: (1, size)}


def test_inspect_of_an_empty_server(own: Server) -> None:
    assert inspect(own.url, {}) == {
        "records": 0,
        "bytes": 0,
        "cleared": {"records": 0, "bytes": 0},
        "namespaces": [],
    }


def test_verify_finds_what_does_not_hold_and_changes_nothing(own: Server) -> None:
    namespace = fresh_namespace()
    with valkey_tier(own.url, namespace) as tier:
        put(tier, [Item(key(number), block(number)) for number in range(30)])
    names = record_names(own.raw, namespace)
    own.raw.setrange(names[3], HEADER_BYTES + 5, b"other")
    own.raw.setrange(names[4], 3, b"other")
    own.raw.copy(names[5], names[6], replace=True)
    own.raw.delete(names[7])
    own.raw.rpush(names[7], "a list")
    seen: list[int] = []
    found = verify(own.url, {}, lambda done, _: seen.append(done))
    assert (found.records, found.corrupt_records, len(found.corrupt)) == (30, 4, 4)
    assert seen == sorted(seen)
    assert seen[-1] == found.bytes
    assert verify(own.url, {}, lambda *_: None) == found


def test_clear_removes_all_that_is_ours_and_running_engines_begin_anew(own: Server) -> None:
    own.raw.set("somebody else's", "value")
    with valkey_tier(own.url) as one, valkey_tier(own.url) as other:
        put(one, [Item(key(number), block(number, 64)) for number in range(2500)])
        put(other, [Item(key(1), block(1))])
        assert clear(own.url, {}, lambda *_: None) == 2501
        assert own.raw.keys("*") == [b"somebody else's"]
        assert verdicts(get(one, [Item(key(1), room(64))])) == [Verdict.MISS]
        assert verdicts(lookup(other, [key(1)])) == [Verdict.MISS]
        assert put(one, [Item(key(1), block(1))]) == (HIT,)
        assert get(one, [Item(key(1), room())]) == (HIT,)


def test_a_server_that_cannot_be_used_is_refused_by_name_and_without_the_password() -> None:
    for call in (lambda place: inspect(place, {}), lambda place: verify(place, {}, lambda *_: None)):
        with pytest.raises(ConfigError) as refusal:
            call("valkey://kv:hunter2@127.0.0.1:1")
        assert refusal.value.option == "url"
        assert "hunter2" not in str(refusal.value)


def test_operators_need_passwords_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "right")
    with Server(password="right") as server:  # noqa: S106 - it is not one
        with pytest.raises(ConfigError, match="NOAUTH"):
            inspect(server.url, {})
        assert inspect(server.url, {"password_env": "WORD"})["records"] == 0

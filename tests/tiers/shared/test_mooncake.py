"""A Mooncake store: the contract, sharing, and what happens when parts of it die.

Setting up a client takes up to a second, so most tests share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kvtide.errors import ConfigError
from kvtide.tiers import HIT, MISS, Item, Namespace, QueuedTier, Verdict
from kvtide.tiers import mooncake as kind
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.mooncake import backend, native
from kvtide.tiers.mooncake.names import Names, manifest_name
from kvtide.tiers.mooncake.opening import tier_of
from kvtide.tiers.mooncake.options import MooncakeConfig
from kvtide.tiers.record import HEADER_BYTES
from tests.contracts.tier_contract import (
    BLOCK_BYTES,
    KeepingContract,
    block,
    clear,
    get,
    key,
    lookup,
    put,
    room,
    verdicts,
)
from tests.tiers.shared.servers import PATIENCE_S, Master, mooncake, mooncake_program, until
from tests.tiers.shared.support import fresh_namespace

GIVEN_UP = {Verdict.FAILED, Verdict.THROTTLED}
DEADLINE_MS = 5000
"""For a busy machine. The client keeps to the first one of a process, and waits as long for what is stopped."""
SHORT_MS = 100
"""What a busy machine may take longer than, too."""
LARGE = 600 << 10
"""Above what is carried together with its header."""


def mooncake_config(master: Master, **options: object) -> MooncakeConfig:
    (config,) = parse_tiers([{**master.options, "deadline_ms": DEADLINE_MS, **options}])
    assert isinstance(config, MooncakeConfig)
    return config


@contextmanager
def mooncake_tier(master: Master, namespace: Namespace | None = None, **options: object) -> Iterator[QueuedTier]:
    tier = tier_of(mooncake_config(master, **options), namespace or fresh_namespace())
    try:
        yield tier
    finally:
        assert tier.close(PATIENCE_S)


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with mooncake() as (running, _):
        yield running


@pytest.fixture(scope="module")
def store(master: Master) -> Iterator[Any]:
    """A client that all tests of the module use."""
    config = mooncake_config(master)
    client = native.load(config.deadline_ms).MooncakeDistributedStore()
    assert client.setup("127.0.0.1", config.address.metadata, 0, 16 << 20, "tcp", "", config.address.master) == 0
    yield client
    client.close()


@pytest.fixture
def _shared_client(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "connect", lambda config: store)
    monkeypatch.setattr(backend, "disconnect", lambda store, is_up: None)


@pytest.fixture
def _no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master is known to be there: do not start a process to find out, which takes a second."""
    monkeypatch.setattr(native, "_try_elsewhere", lambda arguments: None)


@pytest.mark.usefixtures("_shared_client")
class TestMooncake(KeepingContract):
    sizes = (*KeepingContract.sizes, LARGE)
    config: MooncakeConfig

    @pytest.fixture(autouse=True)
    def _master(self, master: Master) -> None:
        self.config = mooncake_config(master)

    def build(self, *, calls_max: int | None = None) -> QueuedTier:
        return tier_of(self.config, fresh_namespace(), calls_max=calls_max or 1024)


@pytest.mark.usefixtures("_shared_client")
class TestWhatIsStored:
    @pytest.fixture(autouse=True)
    def _store(self, master: Master, store: Any) -> None:
        self.master, self.store = master, store
        self.namespace = fresh_namespace()

    def name(self, number: int) -> str:
        return Names(self.namespace.digest).record(key(number))

    def replace(self, number: int, value: bytes) -> None:
        assert self.store.remove(self.name(number), True) == 0
        assert self.store.put(self.name(number), value) == 0

    @pytest.mark.parametrize("size", [BLOCK_BYTES, LARGE])
    @pytest.mark.parametrize("at", [0, 30, 100, HEADER_BYTES, HEADER_BYTES + BLOCK_BYTES - 1])
    def test_f8_a_flipped_bit_is_a_miss_and_the_record_is_replaced(self, size: int, at: int) -> None:
        with mooncake_tier(self.master, self.namespace) as tier:
            put(tier, [Item(key(number), block(number, size)) for number in range(3)])
            value = bytearray(self.store.get(self.name(1)))
            value[at] ^= 0x10
            self.replace(1, bytes(value))
            wanted = [Item(key(number), room(size)) for number in range(3)]
            assert verdicts(get(tier, wanted)) == [Verdict.HIT, Verdict.MISS, Verdict.HIT]
            assert tier.stats().corrupt_records == 1
            assert put(tier, [Item(key(1), block(1, size))]) == (HIT,)
            assert get(tier, [Item(key(1), room(size))]) == (HIT,)

    @pytest.mark.parametrize("size", [BLOCK_BYTES, LARGE])
    @pytest.mark.parametrize("cut", [1, HEADER_BYTES, HEADER_BYTES + 100, -1, 0])
    def test_f8_a_record_of_another_length_is_a_miss(self, size: int, cut: int) -> None:
        with mooncake_tier(self.master, self.namespace) as tier:
            put(tier, [Item(key(1), block(1, size))])
            value = self.store.get(self.name(1))
            self.replace(1, value[:cut] if cut else value + b"more")
            assert verdicts(get(tier, [Item(key(1), room(size))])) == [Verdict.MISS]

    @pytest.mark.parametrize("size", [BLOCK_BYTES, LARGE])
    def test_f8_records_swapped_between_two_keys_are_misses(self, size: int) -> None:
        with mooncake_tier(self.master, self.namespace) as tier:
            put(tier, [Item(key(1), block(1, size)), Item(key(2), block(2, size))])
            one, other = self.store.get(self.name(1)), self.store.get(self.name(2))
            self.replace(1, other)
            self.replace(2, one)
            results = get(tier, [Item(key(1), room(size)), Item(key(2), room(size))])
            assert verdicts(results) == [Verdict.MISS] * 2

    @pytest.mark.parametrize(("size", "count"), [(64 << 10, 300), (1 << 20, 20)])
    def test_f8_flipped_bits_are_found_in_every_batch_of_a_call(self, size: int, count: int) -> None:
        bad = {0, count // 2, count - 1}
        with mooncake_tier(self.master, self.namespace) as tier:
            assert set(put(tier, [Item(key(number), block(number, size)) for number in range(count)])) == {HIT}
            for number in bad:
                value = bytearray(self.store.get(self.name(number)))
                value[-1] ^= 1
                self.replace(number, bytes(value))
            wanted = [Item(key(number), room(size)) for number in range(count)]
            missed = {number for number, result in enumerate(get(tier, wanted)) if result != HIT}
            assert missed == bad
            assert all(item.buffer == block(n, size) for n, item in enumerate(wanted) if n not in bad)
            assert tier.stats().corrupt_records == len(bad)
            assert clear(tier) == HIT

    def test_f23_another_namespace_is_never_read_and_the_log_says_what_differs(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with mooncake_tier(self.master, self.namespace) as one:
            put(one, [Item(key(1), block(1))])
            with mooncake_tier(self.master, replace(self.namespace, dtype="bfloat16")) as other:
                assert lookup(other, [key(1)]) == (MISS,)
                assert clear(other) == HIT
            assert lookup(one, [key(1)]) == (HIT,)
        assert ['dtype: stored "float32", now "bfloat16"' in record.message for record in caplog.records] == [True]

    def test_blocks_of_another_format_are_left_alone_with_one_line(self, caplog: pytest.LogCaptureFixture) -> None:
        assert self.store.put(manifest_name(self.namespace, 2), b"{}") == 0
        with mooncake_tier(self.master, self.namespace) as tier:
            assert lookup(tier, [key(1)]) == (MISS,)
            assert put(tier, [Item(key(1), block(1))]) == (HIT,)
        (line,) = caplog.messages
        assert "has blocks of format 2, and this version of kvtide has 1: they are not read" in line

    def test_a_damaged_manifest_is_one_line_and_is_replaced(self, caplog: pytest.LogCaptureFixture) -> None:
        assert self.store.put(manifest_name(self.namespace), b"{half a manif") == 0
        for _ in range(2):
            with mooncake_tier(self.master, self.namespace) as tier:
                assert put(tier, [Item(key(1), block(1))]) == (HIT,)
        (line,) = caplog.messages
        assert f"{manifest_name(self.namespace)} in mooncake://" in line
        assert "cannot be read and is not relied on" in line

    def test_memory_can_be_registered(self) -> None:
        memory = block(1, 1 << 20)
        with mooncake_tier(self.master, self.namespace) as tier:
            tier.register(memory)
            assert put(tier, [Item(key(1), memory)]) == (HIT,)
            assert get(tier, [Item(key(1), memory)]) == (HIT,)
        assert memory == block(1, 1 << 20)


@pytest.mark.usefixtures("_no_trial")
def test_two_engines_share_and_a_clear_is_seen_by_both(master: Master) -> None:
    namespace = fresh_namespace()
    with mooncake_tier(master, namespace) as one, mooncake_tier(master, namespace) as other:
        assert put(one, [Item(key(1), block(1)), Item(key(2), block(2, LARGE))]) == (HIT, HIT)
        wanted = [Item(key(1), room()), Item(key(2), room(LARGE))]
        assert get(other, wanted) == (HIT, HIT)
        assert [item.buffer for item in wanted] == [block(1), block(2, LARGE)]
        assert clear(one) == HIT
        assert lookup(other, [key(1), key(2)]) == (MISS, MISS)


@pytest.mark.usefixtures("_no_trial")
def test_after_a_change_of_key_old_records_are_replaced(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "11" * 32)
    monkeypatch.setenv("OTHER", "22" * 32)
    namespace = fresh_namespace()
    with mooncake_tier(master, namespace, encryption_key_env="ONE") as before:
        assert put(before, [Item(key(1), block(1))]) == (HIT,)
    with mooncake_tier(master, namespace, encryption_key_env="OTHER") as after:
        assert verdicts(get(after, [Item(key(1), room())])) == [Verdict.MISS]
        assert after.stats().wrong_secret_records == 1
        assert put(after, [Item(key(1), block(1))]) == (HIT,)
        wanted = Item(key(1), room())
        assert get(after, [wanted]) == (HIT,)
        assert wanted.buffer == block(1)


@pytest.mark.usefixtures("_no_trial")
def test_operators_can_reach_it_and_clear_it(master: Master) -> None:
    place = f"mooncake://{master.options['master']}?metadata={master.options['metadata']}"
    namespace = fresh_namespace()
    with mooncake_tier(master, namespace) as tier:
        put(tier, [Item(key(1), block(1))])
        assert kind.inspect(place, {})["records"] is None
        assert kind.clear(place, {}, lambda *_: None) >= 1
        assert lookup(tier, [key(1)]) == (MISS,)
    with pytest.raises(ConfigError, match="url"):
        kind.verify(place, {}, lambda *_: None)


@pytest.mark.usefixtures("_no_trial")
def test_f18_a_dead_master_costs_misses_and_one_line_until_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with mooncake() as (running, _), mooncake_tier(running, deadline_ms=SHORT_MS) as tier:
        until(lambda: put(tier, [Item(key(1), block(1))]) == (HIT,))
        caplog.clear()
        running.kill()
        until(lambda: lookup(tier, [key(1)])[0].verdict in GIVEN_UP)
        until(lambda: tier.stats().breaker == "open")
        for _ in range(20):
            assert set(verdicts(get(tier, [Item(key(1), room())]))) <= GIVEN_UP
        assert len(caplog.records) == 1
        running.start()
        until(lambda: lookup(tier, [key(1)])[0].verdict in (Verdict.HIT, Verdict.MISS))
        until(lambda: put(tier, [Item(key(2), block(2))])[0] == HIT)


def test_f18_a_master_that_is_stopped_is_given_up_and_used_again(caplog: pytest.LogCaptureFixture) -> None:
    with mooncake() as (running, _), mooncake_tier(running, deadline_ms=SHORT_MS) as tier:
        until(lambda: put(tier, [Item(key(1), block(1))]) == (HIT,))
        running.pause()
        until(lambda: tier.stats().breaker == "open" or lookup(tier, [key(1)])[0].verdict in GIVEN_UP)
        running.resume()
        until(lambda: get(tier, [Item(key(1), room())]) == (HIT,))


@pytest.mark.usefixtures("_no_trial")
def test_f8_what_died_with_its_owner_is_a_miss_though_the_master_still_names_it() -> None:
    with mooncake() as (running, owner), mooncake_tier(running) as tier:
        items = [Item(key(1), block(1)), Item(key(2), block(2, LARGE))]
        assert put(tier, items) == (HIT, HIT)
        owner.kill()
        results = get(tier, [Item(key(1), room()), Item(key(2), room(LARGE))])
        assert set(verdicts(results)) <= {Verdict.MISS, *GIVEN_UP}


@pytest.mark.usefixtures("_no_trial")
def test_f18_an_owner_that_is_stopped_is_waited_for_a_bounded_time_and_used_again() -> None:
    with mooncake() as (running, owner), mooncake_tier(running, deadline_ms=SHORT_MS) as tier:
        until(lambda: put(tier, [Item(key(1), block(1))]) == (HIT,))
        owner.pause()
        assert verdicts(get(tier, [Item(key(1), room())])) != [Verdict.HIT]
        owner.resume()
        until(lambda: get(tier, [Item(key(1), room())])[0].verdict in (Verdict.HIT, Verdict.MISS))


def test_a_store_that_is_not_there_at_start_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    mooncake_program()  # or skip
    master = Master()
    with mooncake_tier(master) as tier:
        assert set(verdicts(lookup(tier, [key(1)]))) <= GIVEN_UP
        assert len(caplog.records) == 1

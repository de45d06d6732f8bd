"""Servers that die, stop, come back, fill up or keep us out: misses and one log line, never an error to a request."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvtide.core.messages import Clear, Lookup
from kvtide.tiers import HIT, Item, QueuedTier, Verdict, watchdog
from kvtide.tiers.backend import BackendDown
from kvtide.tiers.record import Sealed
from kvtide.tiers.stack import Level, TierStack
from kvtide.tiers.valkey import backend as backend_module
from kvtide.tiers.valkey.backend import ValkeyBackend
from kvtide.tiers.valkey.connection import Connection
from tests.contracts.tier_contract import answers, block, clear, get, key, lookup, put, room, verdicts
from tests.tiers.shared.servers import PATIENCE_S, Server, until
from tests.tiers.shared.support import fresh_namespace, record_names, valkey_config, valkey_tier

RIGHT = "right"
WORD: dict[str, Any] = {"password_env": "WORD"}
GIVEN_UP = {Verdict.FAILED, Verdict.THROTTLED}


def tier_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("kvtide")]


def comes_back(tier: QueuedTier) -> Callable[[], bool]:
    return lambda: lookup(tier, [key(1)])[0].verdict in (Verdict.HIT, Verdict.MISS)


class Clock:
    """The watchdog's, which goes on when the test says so: an open breaker stays open, however slow the machine is."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def after_a_while(self, holds: Callable[[], bool]) -> None:
        """Wait for something that must come true when enough time has passed."""

        def passes() -> bool:
            self.now_s += 60.0
            return holds()

        until(passes)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    return clock


def test_f18_a_server_that_is_killed_costs_misses_and_one_line_until_it_is_back(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    with Server() as server, valkey_tier(server.url) as tier:
        put(tier, [Item(key(1), block(1))])
        server.kill()
        for _ in range(10):
            assert set(verdicts(get(tier, [Item(key(1), room())]))) <= GIVEN_UP
        assert set(verdicts(put(tier, [Item(key(1), block(1))]))) <= GIVEN_UP
        assert tier.stats().breaker == "open"
        assert len(tier_lines(caplog)) == 1
        server.start()
        clock.after_a_while(comes_back(tier))
        assert put(tier, [Item(key(1), block(1))])[0].verdict in (Verdict.HIT, Verdict.MISS)
        assert tier.stats().breaker == "closed"
        assert [line.endswith("works again") for line in tier_lines(caplog)] == [False, True]


@pytest.mark.usefixtures("clock")
def test_f18_nothing_is_tried_while_the_breaker_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Connection] = []
    connect = Connection.__enter__

    def counted(self: Connection) -> Connection:
        tries.append(self)
        return connect(self)

    monkeypatch.setattr(Connection, "__enter__", counted)
    with Server() as server, valkey_tier(server.url, threads=1) as tier:
        server.kill()
        tries.clear()
        results = [lookup(tier, [key(1)])[0].verdict for _ in range(20)]
        assert len(tries) == 2
        assert results == [Verdict.FAILED] * 2 + [Verdict.THROTTLED] * 18


def answers_a_ping(connection: Connection) -> bool:
    try:
        return connection.ask([(b"PING",)]) == [b"PONG"]
    except BackendDown:
        return False


def test_f18_every_wait_of_a_connection_is_bounded_by_the_deadline() -> None:
    with Server() as server, valkey_tier(server.url):
        connection = Connection(valkey_config(server.url, deadline_ms=70).access, 0.07)
        until(lambda: answers_a_ping(connection))  # a busy machine may need longer than such a short deadline
        with connection:
            assert connection._client.socket_connect_timeout == 0.07
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                limit = struct.unpack("@ll", connection._client._sock.getsockopt(socket.SOL_SOCKET, option, 16))
                assert limit[0] == 0
                assert 70_000 <= limit[1] <= 80_000, "the system counts in ticks"
        server.pause()
        with pytest.raises(BackendDown, match="timed out"):
            connection.ask([(b"PING",)])
        server.resume()
        until(lambda: answers_a_ping(connection))
        server.pause()
        with pytest.raises(BackendDown, match=r"timed out|in time"), connection:
            connection.send([(b"SET", b"large", Sealed(b"", memoryview(bytes(64 << 20))))])
        server.resume()
        connection.close()


def test_f18_a_server_that_is_stopped_times_out_and_is_used_again_when_it_goes_on(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    with Server() as server, valkey_tier(server.url, deadline_ms=50) as tier:
        put(tier, [Item(key(1), block(1))])
        server.pause()
        for _ in range(5):
            assert set(verdicts(get(tier, [Item(key(1), room())]))) <= GIVEN_UP
        assert tier.stats().breaker == "open"
        server.resume()
        clock.after_a_while(comes_back(tier))
        assert tier.stats().breaker == "closed"
        assert [line.endswith("works again") for line in tier_lines(caplog)][:2] == [False, True]


def joins(backend: ValkeyBackend) -> bool:
    try:
        backend.join()
    except BackendDown:  # a busy machine may need longer than such a short deadline
        return False
    return True


def test_f8_replies_that_come_too_late_are_never_taken_for_others() -> None:
    """The stopped server has got the questions, and answers all of them when it goes on."""
    with Server() as server:
        namespace = fresh_namespace()
        with valkey_tier(server.url, namespace) as healthy:
            put(healthy, [Item(key(number), block(number)) for number in range(40)])
        backend = ValkeyBackend(valkey_config(server.url, deadline_ms=50), namespace)
        until(lambda: joins(backend))
        for number in range(20):
            server.pause()
            with pytest.raises(BackendDown):
                backend.get([Item(key(number), room())])
            server.resume()
            wanted = [Item(key(number + 20), room()), Item(key(39 - number), room())]
            try:
                results = backend.get(wanted)
            except BackendDown:  # a busy machine may need longer than such a short deadline
                continue
            assert results == [HIT, HIT]
            assert [item.buffer for item in wanted] == [block(number + 20), block(39 - number)]
        assert backend.corrupt_records() == 0
        backend.close()


def test_a_server_that_is_restarted_while_gets_run_never_gives_other_bytes() -> None:
    with Server() as server, valkey_tier(server.url) as tier:
        seen: set[Verdict] = set()
        for round_ in range(4):
            until(comes_back(tier))
            put(tier, [Item(key(number), block(number)) for number in range(20)])
            wanted = {ticket: [Item(key(number), room()) for number in range(20)] for ticket in range(30)}
            for ticket, items in wanted.items():
                assert tier.get(ticket, items)
            if round_ % 2:
                server.restart()
            else:
                server.pause()
                server.resume()
            for ticket, results in answers(tier, 30).items():
                for number, (item, result) in enumerate(zip(wanted[ticket], results, strict=True)):
                    seen.add(result.verdict)
                    assert result.verdict is not Verdict.HIT or item.buffer == block(number)
        assert Verdict.HIT in seen
        assert tier.stats().corrupt_records == 0


def test_f9_a_clear_while_the_server_is_away_is_made_up_for() -> None:
    with Server() as server:
        namespace = fresh_namespace()
        with valkey_tier(server.url, namespace, deadline_ms=100) as tier, valkey_tier(server.url, namespace) as other:
            put(tier, [Item(key(1), block(1))])
            server.pause()
            until(lambda: tier.stats().breaker == "open" or not lookup(tier, [key(1)]))
            stack = TierStack([Level(tier)], lambda _: room())
            stack.start(Clear(1))
            assert [answer.hits for answer in stack.poll()[0]] == [(0,)]
            server.resume()
            errands = itertools.count(2)

            def cleared() -> bool:
                stack.start(Lookup(next(errands), ()))
                stack.poll()
                return verdicts(lookup(other, [key(1)])) == [Verdict.MISS]

            until(cleared)


def test_a_server_that_is_not_there_at_start_is_used_when_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    with valkey_tier(server.url) as tier:
        assert len(tier_lines(caplog)) == 1
        assert set(verdicts(lookup(tier, [key(1)]))) <= GIVEN_UP
        with server:
            until(comes_back(tier))


def test_closing_does_not_wait_for_a_dead_server() -> None:
    with Server() as server, valkey_tier(server.url) as tier:
        server.kill()
        for ticket in range(50):
            tier.get(ticket, [Item(key(1), room())])
        assert tier.close(PATIENCE_S)
        assert len(tier.poll()) == 50


def test_wrong_passwords_are_one_line_without_the_password(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "hunter2")
    with Server(password=RIGHT) as server, valkey_tier(server.url, **WORD) as tier:
        for _ in range(5):
            assert set(verdicts(lookup(tier, [key(1)]))) <= GIVEN_UP
        (line,) = tier_lines(caplog)
        assert "WRONGPASS" in line
        assert "hunter2" not in caplog.text


def test_no_password_where_one_is_needed_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with Server(password=RIGHT) as server, valkey_tier(server.url) as tier:
        assert set(verdicts(lookup(tier, [key(1)]))) <= GIVEN_UP
        assert "NOAUTH" in tier_lines(caplog)[0]


def test_the_right_password_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "right")
    with Server(password=RIGHT) as server, valkey_tier(server.url, **WORD) as tier:
        assert put(tier, [Item(key(1), block(1))]) == (HIT,)


READER = ["on", ">secret", "~kvtide:*", "+get", "+mget", "+exists"]
DOCUMENTED = [*READER, "+set", "+mset", "+msetnx", "+unlink", "+scan", "+strlen", "+hset", "+hgetall"]


def test_a_user_with_the_documented_rights_can_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "secret")
    with Server() as server:
        client = server.raw
        client.execute_command("ACL", "SETUSER", "kvtide", *DOCUMENTED)
        with valkey_tier(server.url, username="kvtide", **WORD) as tier:
            assert put(tier, [Item(key(1), block(1))]) == (HIT,)
            assert get(tier, [Item(key(1), room())]) == (HIT,)
            assert clear(tier) == HIT
            assert verdicts(lookup(tier, [key(1)])) == [Verdict.MISS]


def test_a_user_who_may_only_read_reads(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "secret")
    namespace = fresh_namespace()
    with Server() as server:
        client = server.raw
        client.execute_command("ACL", "SETUSER", "reader", *READER)
        with valkey_tier(server.url, namespace) as writer:
            put(writer, [Item(key(1), block(1))])
        with valkey_tier(server.url, namespace, username="reader", **WORD) as tier:
            for _ in range(3):
                assert get(tier, [Item(key(1), room())]) == (HIT,)
                assert set(verdicts(put(tier, [Item(key(2), block(2))]))) <= GIVEN_UP
            assert tier.stats().breaker == "closed"
            assert ["NOPERM" in line for line in tier_lines(caplog)] == [True]


def test_a_full_server_is_still_read_and_writing_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with Server("--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server, valkey_tier(server.url) as tier:
        put(tier, [Item(key(0), block(0))])
        for number in range(1, 12):
            results = put(tier, [Item(key(number), block(number, 512 << 10))])
            assert set(verdicts(results)) <= GIVEN_UP | {Verdict.HIT}
            assert get(tier, [Item(key(0), room())]) == (HIT,)
        assert tier.stats().breaker == "closed"
        assert ["OOM" in line for line in tier_lines(caplog)] == [True]
        client = server.raw
        client.config_set("maxmemory", "100mb")
        until(lambda: put(tier, [Item(key(1), block(1))]) == (HIT,))
        assert tier_lines(caplog)[1:] == [tier_lines(caplog)[-1]]


def test_what_a_server_evicts_is_a_miss() -> None:
    """Far more keys than copies of the generation, or the server may evict all of these for a single block."""
    with Server("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru") as server, valkey_tier(server.url) as tier:
        for first in range(0, 2000, 10):
            assert put(tier, [Item(key(number), block(number)) for number in range(first, first + 10)]) == (HIT,) * 10
        found = get(tier, [Item(key(number), room()) for number in range(2000)])
        assert set(verdicts(found)) == {Verdict.HIT, Verdict.MISS}
        assert tier.stats().corrupt_records == 0


def test_a_replica_is_read_and_not_written(caplog: pytest.LogCaptureFixture) -> None:
    with Server() as server:
        namespace = fresh_namespace()
        with valkey_tier(server.url, namespace) as tier:
            put(tier, [Item(key(1), block(1))])
            client = server.raw
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            for _ in range(3):
                assert set(verdicts(put(tier, [Item(key(2), block(2))]))) <= GIVEN_UP
                assert get(tier, [Item(key(1), room())]) == (HIT,)
            assert ["READONLY" in line for line in tier_lines(caplog)] == [True]
            client.execute_command("REPLICAOF", "NO", "ONE")
            until(lambda: put(tier, [Item(key(2), block(2))]) == (HIT,))


def test_a_server_of_a_cluster_is_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    with Server("--cluster-enabled", "yes") as server, valkey_tier(server.url) as tier:
        assert set(verdicts(lookup(tier, [key(1)]))) <= GIVEN_UP
        assert "cluster" in tier_lines(caplog)[0]


def test_a_block_larger_than_the_server_takes_is_not_sent() -> None:
    with Server() as server, valkey_tier(server.url, max_value=9000) as tier:
        results = put(tier, [Item(key(1), block(1, 10_000)), Item(key(2), block(2))])
        assert verdicts(results) == [Verdict.FAILED, Verdict.HIT]


def test_a_server_that_was_emptied_is_filled_again() -> None:
    with Server() as server, valkey_tier(server.url) as tier:
        put(tier, [Item(key(1), block(1))])
        client = server.raw
        client.flushall()
        assert verdicts(get(tier, [Item(key(1), room())])) == [Verdict.MISS]
        assert put(tier, [Item(key(1), block(1))]) == (HIT,)
        assert get(tier, [Item(key(1), room())]) == (HIT,)


def test_records_encrypted_with_another_key_are_misses_and_are_not_removed(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setenv("ONE", "11" * 32)
    monkeypatch.setenv("OTHER", "22" * 32)
    namespace = replace(fresh_namespace(), attention="encrypted")
    client = server.raw
    with valkey_tier(server.url, namespace, encryption_key_env="ONE") as one:
        put(one, [Item(key(1), block(1))])
        assert bytes(block(1)[:64]) not in client.get(record_names(client, namespace)[0])
        with valkey_tier(server.url, namespace, encryption_key_env="OTHER") as other:
            assert verdicts(get(other, [Item(key(1), room())])) == [Verdict.MISS]
            assert other.stats().wrong_secret_records == 1
        assert get(one, [Item(key(1), room())]) == (HIT,)


def test_f18_a_server_that_is_away_is_not_called_back_by_puts_that_ask_it_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a failed put no more were sent for a while; they counted as answered, and the breaker closed."""
    with Server() as server:
        backend = ValkeyBackend(valkey_config(server.url), fresh_namespace())
        backend.join()
        server.kill()
        for number in range(6):
            with pytest.raises(BackendDown):
                backend.put([Item(key(number), block(number))])
        backend.close()
    assert not any("refuses to write" in line for line in tier_lines(caplog)), "it is away, which is something else"


def test_a_server_that_refuses_to_write_is_still_asked_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "time", Clock())  # that it has refused stays a moment ago
    with Server() as server:
        backend = ValkeyBackend(valkey_config(server.url), fresh_namespace())
        backend.join()
        server.raw.config_set("maxmemory", "1mb")
        large = memoryview(bytearray(4 << 20))
        assert backend.put([Item(key(1), large)])[0].verdict is not Verdict.HIT
        assert backend.put([Item(key(2), large)])[0].verdict is Verdict.THROTTLED
        server.kill()
        with pytest.raises(BackendDown):
            backend.put([Item(key(3), large)])
        backend.close()


def test_a_reply_too_many_is_not_taken_for_the_next_one() -> None:
    """It came in one packet with the last one, so the socket alone does not show it."""
    with Server() as server:
        connection = Connection(valkey_config(server.url).access, PATIENCE_S)
        assert connection.ask([(b"ECHO", b"1")]) == [b"1"]
        with connection:
            connection.send([(b"ECHO", b"2"), (b"ECHO", b"99")])
            time.sleep(0.05)
            assert connection.reply() == b"2"
            connection._awaited = 0  # as if nothing else had been asked
        assert connection.ask([(b"ECHO", b"3")]) == [b"3"]
        connection.close()


def test_a_sweep_does_not_go_on_after_somebody_else_has_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes what is not of the generation that it knows: that would be what the other engine has written since."""
    with Server() as server:
        namespace = fresh_namespace()
        one, other = (ValkeyBackend(valkey_config(server.url), namespace) for _ in range(2))
        one.join()
        other.join()
        swept: list[bytes] = []
        monkeypatch.setattr(one._sweep, "step", lambda _, generation: swept.append(generation))
        other.clear()
        assert one.put([Item(key(1), block(1))])[0].verdict is Verdict.MISS, "it was cleared meanwhile"
        assert not swept
        assert one.put([Item(key(1), block(1))]) == [HIT]
        assert swept == [other._generation.current]
        one.close()
        other.close()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="batch scheduling: Only Linux has it.")
def test_puts_are_in_no_hurry_and_gets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    policies: dict[str, int] = {}
    for name in ("_send", "_get"):
        call = getattr(ValkeyBackend, name)

        def noting(*arguments: Any, call: Any = call, name: str = name) -> Any:
            policies[name] = os.sched_getscheduler(0)
            return call(*arguments)

        monkeypatch.setattr(ValkeyBackend, name, noting)
    with Server() as server, valkey_tier(server.url) as tier:
        put(tier, [Item(key(1), block(1))])
        assert get(tier, [Item(key(1), room())]) == (HIT,)
    assert policies == {"_send": os.SCHED_BATCH, "_get": os.SCHED_OTHER}

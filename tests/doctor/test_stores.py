"""Real stores, reachable and not: latency, clocks, and no passwords."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kvtide.doctor.latency import judge_latency
from kvtide.doctor.mooncake import check_mooncake
from kvtide.doctor.valkey import check_valkey, check_valkey_clock
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.mooncake.options import MooncakeConfig
from tests.doctor.support import is_bad, is_ok, is_warning
from tests.ports import free_port
from tests.tiers.shared.servers import Server, mooncake, mooncake_program
from tests.tiers.shared.support import valkey_config

PASSWORD = "hunter2"  # noqa: S105 - of a server that lives for a test
PATIENT_MS = 60_000
"""A store that is well answers in a fifth of that also on a busy machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
    with Server(*limits, port=free_port(), password=PASSWORD) as running:
        yield running


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for stores as long as a busy machine needs: tests that use this are not about silence."""
    monkeypatch.setattr("kvtide.doctor.valkey.SILENCE_S", PATIENT_MS / 1000)
    monkeypatch.setattr("kvtide.doctor.mooncake.DEADLINE_MS", PATIENT_MS)


@pytest.mark.usefixtures("_patient")
def test_a_server_that_answers_is_well_with_its_latency_and_without_its_password(server: Server) -> None:
    config = valkey_config(f"valkey://:{PASSWORD}@127.0.0.1:{server.port}", deadline_ms=PATIENT_MS)
    finding = check_valkey(config)
    assert is_ok(finding, f"valkey://127.0.0.1:{server.port}/0 answers in", " ms", "maxmemory 64 MiB, allkeys-lru")
    assert PASSWORD not in str(finding)


def test_asking_leaves_nothing_in_the_server(server: Server) -> None:
    config = valkey_config(f"unix://:{PASSWORD}@{server.socket}")
    check_valkey(config)
    check_valkey_clock(config)
    assert server.raw.dbsize() == 0


def test_a_server_that_is_not_there_is_bad(tmp_path: Path) -> None:
    finding = check_valkey(valkey_config(f"valkey://me:{PASSWORD}@127.0.0.1:{free_port()}"))
    assert is_bad(finding, "Connection refused", "start the server")
    assert PASSWORD not in str(finding)
    assert is_bad(check_valkey(valkey_config(f"unix://{tmp_path}/none")), "No such file", "start the server")


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(("url", "said"), [("unix://:wrong@{}", "it says: "), ("unix://{}", "NOAUTH")])
def test_a_server_that_does_not_let_us_in_is_bad(server: Server, url: str, said: str) -> None:
    finding = check_valkey(valkey_config(url.format(server.socket)))
    assert is_bad(finding, said, "password")
    assert "wrong@" not in str(finding)


def test_a_server_that_says_nothing_is_bad_and_not_waited_for() -> None:
    with Server() as stopped:
        stopped.pause()
        finding = check_valkey(valkey_config(stopped.url))
    assert is_bad(finding, "Timeout", "start the server")


@pytest.mark.usefixtures("_patient")
def test_a_server_that_grows_without_end_is_a_warning() -> None:
    with Server() as boundless:
        finding = check_valkey(valkey_config(boundless.url, deadline_ms=PATIENT_MS))
    assert is_warning(finding, "maxmemory not set, noeviction", "allkeys-lru")


def test_a_store_that_takes_much_of_the_time_that_requests_wait_is_a_warning() -> None:
    assert is_ok(judge_latency("valkey://far:1/0", 0.01, 50), "answers in 10 ms")
    assert is_warning(judge_latency("valkey://far:1/0", 0.011, 50), "requests wait 50 ms at most", "deadline_ms")


@pytest.mark.usefixtures("_patient")
def test_the_clock_of_the_store_is_compared_with_ours(server: Server) -> None:
    config = valkey_config(f"unix://:{PASSWORD}@{server.socket}")
    assert is_ok(check_valkey_clock(config), str(config.place))
    for ahead_s, word in ((100, "ahead of"), (-100, "behind")):
        finding = check_valkey_clock(config, partial(clock, ahead_s))
        assert is_warning(finding, f" s {word} ", "chrony")
        assert re.match(r"(9\d|10\d) s", finding.found), "a busy machine takes its time between question and answer"


def clock(ahead_s: float) -> float:
    return time.time() + ahead_s


def test_the_clock_of_a_store_that_is_not_there_is_said_not_to_be_compared(tmp_path: Path) -> None:
    assert is_ok(check_valkey_clock(valkey_config(f"unix://{tmp_path}/none")), "not compared")


def mooncake_config(**options: object) -> MooncakeConfig:
    (config,) = parse_tiers([{"type": "mooncake", "deadline_ms": PATIENT_MS, **options}])
    assert isinstance(config, MooncakeConfig)
    return config


@pytest.mark.usefixtures("_patient")
def test_a_mooncake_store_that_answers_is_well() -> None:
    with mooncake() as (master, _):
        assert is_ok(check_mooncake(mooncake_config(**master.options)), f"127.0.0.1:{master.rpc_port} answers in")


def test_a_mooncake_store_that_is_not_there_is_bad() -> None:
    mooncake_program()  # its client comes with it
    finding = check_mooncake(mooncake_config(master=f"127.0.0.1:{free_port()}"))
    assert is_bad(finding, "cannot be reached", "start mooncake_master")


def test_a_mooncake_store_that_says_nothing_is_bad() -> None:
    with mooncake() as (master, _):
        master.pause()
        finding = check_mooncake(mooncake_config(**master.options))
        master.resume()
    assert is_bad(finding, "cannot be reached", "start mooncake_master")


def test_a_client_that_does_not_come_back_is_ended_and_that_is_bad() -> None:
    before = children()
    finding = check_mooncake(mooncake_config(master=f"127.0.0.1:{free_port()}"), timeout_s=0.01)
    assert is_bad(finding, "has not answered in 0.01 s", "start mooncake_master")
    assert children() == before


def children() -> str:
    """Return the processes that this one has started and that still run."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()

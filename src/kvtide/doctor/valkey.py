"""A Valkey of the configuration: whether it answers, how soon, and what its clock says. Passwords are not shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvtide.doctor.base import Finding, Health, bad, ok, warning
from kvtide.doctor.clocks import check_wall_clock
from kvtide.doctor.latency import judge_latency, round_trip_s
from kvtide.tiers.backend import BackendDown
from kvtide.units import size_text

if TYPE_CHECKING:
    from kvtide.tiers.valkey.connection import Connection
    from kvtide.tiers.valkey.options import ValkeyConfig

SILENCE_S = 2.0


def check_valkey(config: ValkeyConfig) -> Finding:
    """Connect and ask a few times."""
    try:
        with _server(config) as connection:
            connection.ask([(b"PING",)])
            seconds = round_trip_s(lambda: connection.ask([(b"PING",)]))
            (memory,) = connection.ask([(b"INFO", b"memory")])
    except BackendDown as down:
        return bad(
            f"{config.place} cannot be used: {down}",
            "start the server, or correct url and access (user, password, tls_ca) of this tier; a server of vLLM would "
            "start, and do without the tier until it answers",
        )
    finding = judge_latency(config.place, seconds, config.deadline_ms)
    return finding if finding.health is not Health.OK else _with_memory(finding.found, memory)


def _with_memory(found: str, info: object) -> Finding:
    """Look at how the server makes room. Not every user may ask for that."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else ""
    said = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    limit, policy = said.get("maxmemory", ""), said.get("maxmemory_policy", "")
    if not limit.isdecimal():
        return ok(found)
    found += f"; maxmemory {size_text(int(limit)) if int(limit) else 'not set'}, {policy}"
    if limit == "0" or policy == "noeviction":
        return warning(
            found,
            "set maxmemory, and maxmemory-policy allkeys-lru: otherwise the store grows until its machine has no "
            "memory left, or takes no more blocks once it is full",
        )
    return ok(found)


def check_valkey_clock(config: ValkeyConfig, now: Callable[[], float] = time.time) -> Finding:
    """Compare this machine's wall clock with the server's."""
    try:
        with _server(config) as connection:
            connection.ask([(b"PING",)])
            before_s = now()
            (reply,) = connection.ask([(b"TIME",)])
            here_s = (before_s + now()) / 2
    except BackendDown as down:
        return ok(f"not compared: {config.place} cannot be used ({down})")
    if not isinstance(reply, list):
        return ok(f"not compared: {config.place} does not tell this user its time")
    there_s = int(reply[0]) + int(reply[1]) / 1e6
    return check_wall_clock(config.place, there_s - here_s)


@contextmanager
def _server(config: ValkeyConfig) -> Iterator[Connection]:
    from kvtide.tiers.valkey.connection import Connection  # noqa: PLC0415 (the client is an optional package)

    connection = Connection(config.access, SILENCE_S)
    try:
        yield connection
    finally:
        connection.close()

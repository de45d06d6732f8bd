"""Servers that the tests of shared stores use together; tests that harm a server start their own.

Everything that talks to a server is run with Valkey and with Redis.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tiers.shared.servers import KINDS, Server, find_server, has_tls, server_program

WITHOUT_SERVER = {"test_valkey_options", "test_valkey_protocol"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name.startswith("test_valkey") and name not in WITHOUT_SERVER:
        metafunc.fixturenames.insert(0, "kind")
        kinds = kinds_with_tls() if name == "test_valkey_tls" else KINDS
        metafunc.parametrize("kind", kinds, indirect=True, scope="session")


def kinds_with_tls() -> list[str]:
    """Return the servers that have TLS; where there are none, the one to install."""
    return [kind for kind in KINDS if (program := find_server(kind)) and has_tls(program)] or ["redis"]


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let all servers be of this kind."""
    server_program(request.param)
    Server.kind = request.param
    yield request.param
    Server.kind = None


@pytest.fixture(scope="session")
def server(kind: str) -> Iterator[Server]:
    with Server() as running:
        yield running

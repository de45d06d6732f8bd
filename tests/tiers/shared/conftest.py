"""Servers that the tests of shared stores use together; tests that harm a server start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tiers.shared.servers import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running

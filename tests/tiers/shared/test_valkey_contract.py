"""The contract of tiers on a real server: over a Unix socket, over TCP, encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtide.tiers import QueuedTier
from kvtide.tiers.valkey.opening import tier_of
from tests.contracts.tier_contract import KeepingContract
from tests.ports import free_port
from tests.tiers.shared.servers import Server
from tests.tiers.shared.support import fresh_namespace, valkey_config


class TestOverAUnixSocket(KeepingContract):
    url: str

    @pytest.fixture(autouse=True)
    def _server(self, server: Server) -> None:
        self.url = server.url

    def build(self, *, calls_max: int | None = None) -> QueuedTier:
        return tier_of(valkey_config(self.url), fresh_namespace(), calls_max=calls_max or 1024)


class TestOverTcp(KeepingContract):
    url: str

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _server(cls) -> Iterator[None]:
        port = free_port()
        with Server(port=port):
            cls.url = f"valkey://127.0.0.1:{port}/1"
            yield

    def build(self, *, calls_max: int | None = None) -> QueuedTier:
        return tier_of(valkey_config(self.url, threads=1), fresh_namespace(), calls_max=calls_max or 1024)


class TestEncrypted(KeepingContract):
    url: str
    secret: str

    @pytest.fixture(autouse=True)
    def _server(self, server: Server, tmp_path: Path) -> None:
        file = tmp_path / "key"
        file.write_text("5a" * 32)
        file.chmod(0o600)
        self.url, self.secret = server.url, str(file)

    def build(self, *, calls_max: int | None = None) -> QueuedTier:
        config = valkey_config(self.url, encryption_key_file=self.secret)
        return tier_of(config, fresh_namespace(), calls_max=calls_max or 1024)

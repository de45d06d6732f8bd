"""Mooncake's client holds the interpreter's lock while it connects and leaves: kvtide does neither with the dead."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tools.system_packages import PACKAGES

from kvtide.errors import ConfigError
from kvtide.tiers.backend import BackendDown
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.mooncake import native
from kvtide.tiers.mooncake.backend import MooncakeBackend
from kvtide.tiers.mooncake.options import MooncakeConfig
from tests.contracts.tier_contract import key
from tests.tiers.shared.support import fresh_namespace

ROOT = Path(__file__).parents[3]


class Client:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.status = 0

    def setup(self, *arguments: object) -> int:
        self.calls.append("setup")
        return self.status

    def close(self) -> None:
        self.calls.append("close")

    def batch_is_exist(self, names: list[str]) -> list[int]:
        return [self.status] * len(names)

    def register_buffer(self, *arguments: int) -> int:
        return 0

    unregister_buffer = register_buffer
    get_into = upsert_from = lambda *arguments: -704


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(native, "load", lambda deadline_ms: SimpleNamespace(MooncakeDistributedStore=lambda: made))
    monkeypatch.setattr(native, "_abandoned", [])
    return made


def config() -> MooncakeConfig:
    (parsed,) = parse_tiers([{"type": "mooncake", "master": "127.0.0.1:1", "metadata": "http://127.0.0.1:2/metadata"}])
    assert isinstance(parsed, MooncakeConfig)
    return parsed


def trial(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_TRIAL", program)


def test_f18_setup_is_not_called_where_another_process_could_not(client: Client, monkeypatch: Any) -> None:
    trial("raise SystemExit(1)", monkeypatch)
    with pytest.raises(BackendDown, match="cannot be reached"):
        native.connect(config())
    assert client.calls == []


def test_f18_setup_is_not_called_where_another_process_got_no_answer(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(native, "_TRIAL_TIMEOUT_S", 0.2)
    trial("import time; time.sleep(60)", monkeypatch)
    with pytest.raises(BackendDown, match="no answer"):
        native.connect(config())
    assert client.calls == []


def test_a_setup_that_fails_all_the_same_is_a_store_that_is_down(client: Client, monkeypatch: Any) -> None:
    trial("", monkeypatch)
    client.status = -1
    with pytest.raises(BackendDown, match="status -1"):
        native.connect(config())


@pytest.mark.parametrize(("status", "calls"), [(1, ["setup", "close"]), (-900, ["setup"]), (-901, ["setup"])])
def test_f18_leave_is_taken_of_masters_that_answer_only(
    client: Client, monkeypatch: Any, status: int, calls: list[str]
) -> None:
    trial("", monkeypatch)
    backend = MooncakeBackend(config(), fresh_namespace())
    backend.join()
    client.status = status
    if status < 0:
        with pytest.raises(BackendDown):
            backend.lookup([key(1)])
    else:
        backend.lookup([key(1)])
    backend.close()
    assert client.calls == calls


def test_a_client_that_cannot_be_imported_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(ConfigError, match=f"pip install 'mooncake-.*{native.LIBRARIES}"):
        native.load(50)


def test_the_error_the_tests_and_the_docs_name_the_same_libraries() -> None:
    libraries = set(native.LIBRARIES.split())
    others = {"redis-server", "prometheus", "chromium-headless-shell", "libatomic1", "tcc"}
    assert libraries == set(PACKAGES.values()) - others
    assert libraries <= set(re.findall(r"lib[\w-]+", (ROOT / "docs/operators/tiers.md").read_text()))

"""TLS: the right certificate lets bytes through, a wrong one nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kvtide.tiers import HIT, Item, QueuedTier, Verdict
from kvtide.tiers.valkey.opening import tier_of
from tests.contracts.tier_contract import KeepingContract, block, key, lookup, put, verdicts
from tests.ports import free_port
from tests.tiers.shared.certificates import Authority, Pair
from tests.tiers.shared.servers import Server
from tests.tiers.shared.support import fresh_namespace, valkey_config, valkey_tier

GIVEN_UP = {Verdict.FAILED, Verdict.THROTTLED}


class Secured(NamedTuple):
    """A server with TLS that asks clients for certificates."""

    url: str
    authority: Authority
    client: Pair
    folder: Path


@pytest.fixture(scope="module")
def secured(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder, "right")
    pair = authority.sign("server")
    port = free_port()
    arguments = ["--tls-cert-file", pair.certificate, "--tls-key-file", pair.key]
    with Server(*arguments, "--tls-ca-cert-file", authority.certificate, tls_port=port):
        yield Secured(f"valkeys://127.0.0.1:{port}", authority, authority.sign("client"), folder)


def options(secured: Secured) -> dict[str, str]:
    certificate, secret = secured.client
    return {"tls_ca": secured.authority.certificate, "tls_cert": certificate, "tls_key": secret}


class TestWithTls(KeepingContract):
    secured: Secured

    @pytest.fixture(autouse=True)
    def _server(self, secured: Secured) -> None:
        self.secured = secured

    def build(self, *, calls_max: int | None = None) -> QueuedTier:
        config = valkey_config(self.secured.url, **options(self.secured))
        return tier_of(config, fresh_namespace(), calls_max=calls_max or 1024)


def refused(url: str, **access: str) -> None:
    with valkey_tier(url, None, **access) as tier:
        assert set(verdicts(lookup(tier, [key(1)]))) <= GIVEN_UP


def test_a_server_that_the_authority_did_not_sign_is_not_spoken_to(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = Authority(secured.folder, "wrong")
    refused(secured.url, **{**options(secured), "tls_ca": wrong.certificate})
    assert [record.message.count("CERTIFICATE_VERIFY_FAILED") for record in caplog.records] == [1]


def test_a_server_is_not_trusted_by_the_system_alone(secured: Secured) -> None:
    certificate, secret = secured.client
    refused(secured.url, tls_cert=certificate, tls_key=secret)


def test_a_certificate_for_another_host_is_not_enough(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = secured.authority.sign("elsewhere", "127.0.0.2")
    port = free_port()
    arguments = ["--tls-cert-file", pair.certificate, "--tls-key-file", pair.key]
    with Server(*arguments, "--tls-ca-cert-file", secured.authority.certificate, tls_port=port):
        refused(f"valkeys://127.0.0.1:{port}", **options(secured))
        assert "127.0.0.1" in caplog.text


def test_a_client_without_a_certificate_is_turned_away(secured: Secured) -> None:
    refused(secured.url, tls_ca=secured.authority.certificate)


def test_a_client_that_does_not_speak_tls_is_turned_away(secured: Secured) -> None:
    refused(secured.url.replace("valkeys", "valkey"))


def test_a_server_that_does_not_speak_tls_is_given_up() -> None:
    port = free_port()
    with Server(port=port):
        refused(f"rediss://127.0.0.1:{port}", deadline_ms=200)  # type: ignore[arg-type]


def test_large_blocks_go_through(secured: Secured) -> None:
    with valkey_tier(secured.url, None, **options(secured)) as tier:
        assert put(tier, [Item(key(number), block(number, 1 << 20)) for number in range(4)]) == (HIT,) * 4

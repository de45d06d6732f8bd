"""What servers answer is read in time, or it is said why not."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

import pytest

from kvtide.errors import ConfigError
from kvtide.top import reading
from kvtide.top.counts import Series
from kvtide.top.reading import CannotRead, metrics_url, parse, read
from tests.top.fake import RECORDED, fake_server, metrics


def test_the_answer_of_a_real_server_is_read() -> None:
    with fake_server(RECORDED) as server:
        found = read(server.url, 10)
    assert found.models == ("llama",)
    assert found.has_kvtide
    assert found.counters.by("vllm:prompt_tokens_by_source_total", "source") == {
        "external_kv_transfer": 1984,
        "local_cache_hit": 1184,
        "local_compute": 2232,
    }
    assert found.counters.total("vllm:kvtide_stored_blocks_total") == 63
    assert found.counters.total("vllm:kvtide_transfer_seconds_count", direction="load") == 6
    assert found.gauges.total("vllm:kvtide_slots_free") == 193


def test_engines_and_models_are_added_up_and_buckets_are_left_out() -> None:
    found = parse(
        "# TYPE vllm:kvtide_requests_total counter\n"
        'vllm:kvtide_requests_total{engine="0",model_name="a"} 3\n'
        'vllm:kvtide_requests_total{engine="1",model_name="a"} 4\n'
        "# TYPE vllm:kvtide_transfer_seconds histogram\n"
        'vllm:kvtide_transfer_seconds_bucket{direction="load",le="+Inf"} 9\n'
        'vllm:kvtide_transfer_seconds_sum{direction="load"} 2\n'
    )
    load = Series("vllm:kvtide_transfer_seconds_sum", (("direction", "load"),))
    assert found.counters == {Series("vllm:kvtide_requests_total"): 7, load: 2}
    assert not found.gauges


def test_labels_are_taken_as_they_come() -> None:
    found = parse(metrics(kvtide_tier_off={'rank="0",tier="/var/cache, \\"old\\""': 1}))
    assert found.gauges.by("vllm:kvtide_tier_off", "tier") == {'/var/cache, "old"': 1}


def test_a_server_without_kvtide_is_read_and_has_none() -> None:
    assert not parse(metrics(num_requests_running=1)).has_kvtide


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no metrics of vLLM"),
        ("# TYPE python_info gauge\npython_info 1\n", "no metrics of vLLM.*: give the address of vLLM"),
        ("\n<html><body>It works!</body></html>", "a web page: give the address of vLLM"),
        ("vllm:kvtide_slots{engine= 3\n", "not in Prometheus' format"),
        ("vllm:kvtide_slots many\n", "not in Prometheus' format"),
    ],
)
def test_what_is_not_metrics_of_vllm_is_said(text: str, why: str) -> None:
    with fake_server(text) as server, pytest.raises(CannotRead, match=why):
        read(server.url, 10)


def test_a_server_that_refuses_is_said() -> None:
    with fake_server("") as server:
        server.status = 404
        with pytest.raises(CannotRead, match="it answers 404 Not Found"):
            read(server.url, 10)
    with pytest.raises(CannotRead, match=rf"nobody listens at port {urlsplit(server.url).port}$"):
        read(server.url, 10)


def test_a_server_that_sends_byte_after_byte_is_given_up_at_the_deadline() -> None:
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(CannotRead) as error:
            read(server.url, 0.2)
        said.append(str(error.value))

    with fake_server("#" * (1 << 20)) as server:
        server.delay_s = 0.01  # for all of it, three hours
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(30)
    assert said == ["no answer within 0.2 s"]


def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BYTES_MAX", 1 << 20)
    with fake_server("#" * (2 << 20)) as server, pytest.raises(CannotRead, match="longer than 1 MiB"):
        read(server.url, 10)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000", "http://localhost:8000/metrics"),
        ("http://localhost:8000/", "http://localhost:8000/metrics"),
        ("https://gpu.example", "https://gpu.example/metrics"),
        ("http://gateway.example/llama/metrics", "http://gateway.example/llama/metrics"),
        ("[::1]:8000", "http://[::1]:8000/metrics"),
    ],
)
def test_an_address_is_completed(text: str, url: str) -> None:
    assert metrics_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://localhost", "http://", "localhost:many", "localhost:99999", "[::1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the address of a server"):
        metrics_url(text)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="without a user name and a password") as refused:
        metrics_url("http://ann:secret@localhost:8000")
    assert "secret" not in str(refused.value)

"""How vLLM finds the connector, and how it is told that something is wrong with the options (F22)."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

import kvtide.vllm
from kvtide.core import FullAttention, Geometry
from kvtide.errors import ConfigError
from kvtide.vllm import log, options, plugin, versions
from kvtide.vllm.connector import KVTideConnector
from kvtide.vllm.options import read_options
from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import engine
from tests.vllm.test_round_trip import assert_same


def test_the_entry_point_registers_the_connector_by_name() -> None:
    [found] = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "kvtide"]
    register = found.load()
    register()
    register()  # vLLM may call it more than once
    config = KVTransferConfig(kv_connector="KVTideConnector", kv_role="kv_both")
    assert KVConnectorFactory.get_connector_class(config) is KVTideConnector
    assert KVConnectorFactory.supports_hma_config(config)


def test_the_module_path_finds_it_too() -> None:
    config = KVTransferConfig(kv_connector="KVTideConnector", kv_connector_module_path="kvtide.vllm", kv_role="kv_both")
    assert KVConnectorFactory.get_connector_class(config) is KVTideConnector
    assert kvtide.vllm.KVTideConnector is KVTideConnector
    with pytest.raises(AttributeError, match="Nothing"):
        _ = kvtide.vllm.Nothing


def test_an_engine_needs_nothing_but_the_name(llama: Path, llama_says: Says) -> None:
    config = {
        "kv_connector": plugin.NAME,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 2**24, "lazy_offload": True},
    }
    with engine(llama, "lazy", kv_transfer_config=config) as offloading:
        assert offloading.side.config.mode == "lazy"
        assert offloading.side.config.host_bytes == 2**24
        assert_same(offloading.generate(*PROMPTS[:2]), llama_says(*PROMPTS[:2]))
        offloading.check_at_rest()


def test_wrong_options_stop_the_engine_with_a_name(llama: Path) -> None:
    with pytest.raises(ConfigError, match=r'hots.*did you mean "host"'), engine(llama, options={"hots": 1}):
        pass


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"hosts": "1GiB"}, 'hosts=.*did you mean "host"'),
        ({"cpu_bytes": 1}, 'cpu_bytes=.*did you mean "cpu_bytes_to_use"'),
        ({"lazy_offlaod": True}, 'did you mean "lazy_offload"'),
        ({"lazy_offload": "false"}, "lazy_offload='false': expected true or false"),
        ({"host": "1GiB", "cpu_bytes_to_use": 2**30}, "either host or cpu_bytes_to_use"),
        ({"mode": "lazy", "lazy_offload": True}, "either mode or lazy_offload"),
        ({"kv_offload_backend": "disk"}, "kv_offload_backend='disk'"),
        ({"copy_threads": "2"}, "copy_threads='2'"),
        ({"staging": "much"}, "staging='much'"),
        ({"cpu_bytes_to_use": "many"}, "cpu_bytes_to_use='many'"),
    ],
)
def test_f22_options_are_refused_by_name(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_options(extra, events=False)


def test_options_of_simple_cpu_offload_mean_the_same() -> None:
    assert read_options({}, events=False).core == {"host": options.DEFAULT_HOST}
    both = {"cpu_bytes_to_use": 100, "cpu_bytes_to_use_per_rank": 60}
    assert read_options(both, events=False).core == {"host_per_rank": 60}
    assert read_options({"lazy_offload": False}, events=True).core["mode"] == "eager"
    assert read_options({}, events=True).core["events"] is True


def test_more_memory_than_the_machine_has_is_refused() -> None:
    geometry = Geometry(groups=(FullAttention(16),), block_bytes=2**20, device_blocks=8)
    with pytest.raises(ConfigError, match=r"host='1000TiB': expected at most the .* bytes .* that this machine has"):
        read_options({"host": "1000TiB"}, events=False).build(geometry)


@pytest.mark.parametrize(("version", "warns"), [("0.23.1", True), ("0.24.0", False), ("0.32.3", False), ("0.33", True)])
def test_other_versions_of_vllm_are_warned_about(monkeypatch: pytest.MonkeyPatch, version: str, warns: bool) -> None:
    said: list[str] = []
    monkeypatch.setattr(versions, "__version__", version)
    monkeypatch.setattr(log.logger, "warning", lambda message, *args: said.append(message % args))
    versions.warn_if_untested()
    assert bool(said) == warns
    assert not warns or "0.24.0 to 0.32.0" in said[0]

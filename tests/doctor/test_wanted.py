"""The configuration is read as a server would read it, and no password is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtide.doctor.asked import read_asked
from kvtide.doctor.wanted import Wanted, check_config, read_wanted
from kvtide.errors import ConfigError
from tests.doctor.support import is_bad, is_ok

GIB = 1 << 30


def whole(extra: object, **others: object) -> str:
    """Return what --kv-transfer-config is given."""
    return json.dumps(
        {"kv_connector": "KVTideConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra, **others}
    )


def wanted_of(config: str | None) -> Wanted:
    return read_wanted(read_asked(config))


def test_without_a_configuration_it_is_what_kvtide_does_by_itself() -> None:
    assert wanted_of(None) == Wanted(given=False, host_bytes=8 * GIB)
    assert is_ok(check_config(Wanted()), "none given")


def test_options_alone_and_the_whole_of_vllms_argument_mean_the_same(tmp_path: Path) -> None:
    extra = {"host": "2GiB", "tiers": [{"type": "disk", "path": str(tmp_path), "size": "1MiB"}]}
    wanted = wanted_of(json.dumps(extra))
    assert wanted_of(whole(extra)) == wanted
    assert (wanted.given, wanted.host_bytes, [tier.type for tier in wanted.tiers]) == (True, 2 * GIB, ["disk"])
    assert is_ok(check_config(wanted), "a server would take it", f"disk at {tmp_path}")


def test_a_file_means_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(whole({"cpu_bytes_to_use": GIB}))
    assert wanted_of(str(tmp_path / "config.json")) == Wanted(given=True, host_bytes=GIB)


def test_a_configuration_of_nothing_is_that_of_the_defaults() -> None:
    assert wanted_of(whole(None)) == wanted_of("{}") == Wanted(given=True)


def test_with_a_node_the_server_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    node = tmp_path / "node.sock"
    wanted = wanted_of(json.dumps({"node": str(node)}))
    assert wanted == Wanted(given=True, host_bytes=0, node=node)
    assert is_ok(check_config(wanted), "a server would take it", f"nothing is at {node} yet")


def test_the_module_that_is_named_is_seen() -> None:
    assert read_asked(whole({}, kv_connector_module_path="kvtide.vllm")).named_module
    assert not read_asked(whole({}, kv_connector_module_path="other")).named_module


def test_kvtide_is_found_among_several_connectors() -> None:
    inner = [{"kv_connector": "Other"}, json.loads(whole({"host": "3GiB"}))]
    several = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": inner}}
    assert wanted_of(json.dumps(several)) == Wanted(given=True, host_bytes=3 * GIB)


def test_a_connector_without_its_role_is_bad() -> None:
    finding = check_config(wanted_of('{"kv_connector": "KVTideConnector"}'))
    assert is_bad(finding, "kv_role, which is left out", 'add "kv_role": "kv_both"')


def test_another_connector_is_bad() -> None:
    finding = check_config(wanted_of(whole({}, kv_connector="KvtideConnector")))
    assert is_bad(finding, "kv_connector='KvtideConnector'", '"KVTideConnector"')


@pytest.mark.parametrize(
    ("extra", "found", "advice"),
    [
        ({"hots": "1GiB"}, "hots='1GiB'", 'did you mean "host"'),
        ({"mode": "easy"}, "mode='easy'", "one of eager, lazy"),
        ({"host": "much"}, "host='much'", "a size in bytes"),
        ({"host": 64}, "host=64", "a number alone is bytes, not GiB"),
        ({"tiers": [{"type": "floppy"}]}, "tiers[0].type='floppy'", "known are disk"),
        ({"tiers": [{"type": "disk", "path": "/nowhere/at/all", "size": 1}]}, "tiers[0].path", "mkdir -p"),
        ({"tiers": ["disk"]}, "tiers[0]", "an object such as"),
        ({"tiers": {"type": "disk"}}, "tiers=…", "a list such as"),
    ],
)
def test_what_a_server_would_refuse_is_bad_with_what_it_expects(
    extra: dict[str, object], found: str, advice: str
) -> None:
    assert is_bad(check_config(wanted_of(json.dumps(extra))), found, advice)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("host", "64GiB", "inside kv_connector_extra_config"),
        ("tiers", [{"type": "valkey", "url": "valkey://me:hunter2@host"}], "inside kv_connector_extra_config"),
        ("kv_connector_extra_confg", {"host": "1GiB"}, '"kv_connector_extra_config"'),
    ],
)
def test_options_beside_those_of_vllm_are_bad(name: str, value: object, expected: str) -> None:
    finding = check_config(wanted_of(whole({}, **{name: value})))
    assert is_bad(finding, f"{name}='…'", expected)
    assert "hunter2" not in str(finding)


def test_what_the_other_checks_assume_of_a_configuration_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    disk = {"type": "disk", "path": str(tmp_path), "size": "1MiB"}
    finding = check_config(wanted_of(json.dumps({"host": "1GiB", "nod": 3, "tiers": [disk]})))
    assert is_bad(finding, f"nod=3; what follows assumes 8 GiB of host memory, tiers: disk at {tmp_path}", '"node"')
    finding = check_config(wanted_of(whole({"host": "1GiB"}, kv_role="both")))
    assert is_bad(finding, "kv_role='both'; what follows assumes 1 GiB of host memory, tiers: none", "kv_both")


def test_what_is_wrong_with_one_tier_hides_neither_the_others_nor_what_is_wrong_with_them(tmp_path: Path) -> None:
    good = {"type": "disk", "path": str(tmp_path), "size": "1MiB"}
    tiers = [{"type": "mooncake"}, good, {"type": "valkey"}]
    wanted = wanted_of(json.dumps({"tiers": tiers}))
    assert [tier.option for tier in wanted.tiers] == ["tiers[1]"]
    assert [problem.option for problem in wanted.problems] == ["tiers[0].master", "tiers[2].url"]


def test_the_number_of_an_engine_in_a_path_is_that_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tier,) = wanted_of(
        json.dumps({"tiers": [{"type": "disk", "path": f"{tmp_path}/{{dp_rank}}", "size": "1MiB"}]})
    ).tiers
    assert tier.place == str(tmp_path / "0")


@pytest.mark.parametrize("config", ["{", "[]", "/nowhere/config.json", '{"kv_connector_extra_config": 3}'])
def test_what_is_no_configuration_is_refused(config: str) -> None:
    with pytest.raises(ConfigError, match=r"--config|kv_connector_extra_config"):
        wanted_of(config)


@pytest.mark.parametrize(
    "tiers",
    [
        [{"type": "valkey", "url": "http://me:hunter2@host"}],
        [{"type": "valkey", "url": "valkey://host", "password": "hunter2"}],
        [{"type": "valkey", "url": "valkey://me:hunter2@host", "password_env": "NOT_THERE"}],
        [{"type": "valkey", "urls": "valkey://me:hunter2@host"}],
        {"type": "valkey", "url": "valkey://me:hunter2@host"},
        [["hunter2"]],
    ],
)
def test_no_password_is_shown_however_it_was_written(tiers: object) -> None:
    finding = check_config(wanted_of(json.dumps({"tiers": tiers})))
    assert is_bad(finding, "tiers", "")
    assert "hunter2" not in str(finding)


@pytest.mark.parametrize("config", ['{"tiers": "hunter2"', '["hunter2"]', "valkey://me:hunter2@host", "'{hunter2}"])
def test_no_password_is_shown_of_what_cannot_be_read(config: str) -> None:
    with pytest.raises(ConfigError) as refused:
        wanted_of(config)
    assert "hunter2" not in str(refused.value)

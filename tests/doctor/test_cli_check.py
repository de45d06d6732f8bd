"""`kvtide check`: what a server would say to its options, all of it, without a server and without vLLM."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import check_refused, run

WRONG: dict[str, object] = {
    "hots": "1GiB",
    "mode": "fast",
    "tiers": [
        {"type": "disk", "path": "/nowhere", "size": "x", "deadline": 5},
        {"type": "valkey", "url": "valkey://u:hunter2@/", "pasword": "hunter2"},
        {"type": "dsik"},
    ],
}
NAMES = [
    "hots",
    "mode",
    "tiers[0].deadline",
    "tiers[0].path",
    "tiers[0].size",
    "tiers[1].pasword",
    "tiers[1].url",
    "tiers[2].type",
]


def whole(extra: dict[str, object]) -> dict[str, object]:
    return {"kv_connector": "KVTideConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


@pytest.mark.parametrize("config", [{"host": "1MiB"}, {}, whole({"host": "1MiB"}), whole({})])
def test_what_a_server_would_take_is_0(capsys: pytest.CaptureFixture[str], config: dict[str, object]) -> None:
    assert run(capsys, "check", json.dumps(config)) == (0, "a server would take it\n", "")
    assert run(capsys, "check", "--json", json.dumps(config)) == (0, '{"ok": true, "errors": []}\n', "")


@pytest.mark.parametrize("config", [WRONG, whole(WRONG)])
def test_everything_wrong_is_told_by_name_without_secrets_and_is_1(
    capsys: pytest.CaptureFixture[str], config: dict[str, object]
) -> None:
    code, out, err = run(capsys, "check", json.dumps(config))
    assert (code, err) == (1, "")
    assert [line.partition("=")[0] for line in out.splitlines()[:-1]] == NAMES
    assert out.endswith("a server would refuse it: 8 options are wrong\n")
    assert "hots='1GiB': expected a known option; did you mean \"host\"?" in out
    assert "hunter2" not in out


@pytest.mark.parametrize("option", ["host", "host_per_rank"])
def test_a_size_without_its_unit_is_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    code, out, err = run(capsys, "check", json.dumps({option: 64}))
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        f'{option}=64: expected at least one block, 4096 bytes; a number alone is bytes, not GiB: "64GiB"',
        "a server would refuse it: 1 option is wrong",
    ]


def test_for_programs_there_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "--json", json.dumps(WRONG))
    found = json.loads(out)
    assert (code, found["ok"]) == (1, False)
    assert [error["option"] for error in found["errors"]] == NAMES
    assert found["errors"][1] == {"option": "mode", "value": "fast", "expected": "one of eager, lazy"}
    assert "hunter2" not in out


def test_a_file_and_standard_input_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"hots": 1}))
    assert run(capsys, "check", file)[0] == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"host": "1MiB"}'))
    assert run(capsys, "check", "-")[0] == 0


def test_more_memory_than_there_is_and_what_vllm_itself_refuses_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "host='1000TiB': expected at most the " in run(capsys, "check", '{"host": "1000TiB"}')[1]
    code, out, _ = run(capsys, "check", '{"kv_connector": "KVTideConnector"}')
    assert (code, out.splitlines()[0]) == (
        1,
        'kv_role: expected "kv_both", and it is left out: add "kv_role": "kv_both"',
    )


def test_both_names_of_one_option_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for extra, said in (
        ({"host": "1MiB", "cpu_bytes_to_use": 5}, "either host or cpu_bytes_to_use"),
        ({"host": "1MiB", "host_per_rank": "1MiB"}, "either host or host_per_rank"),
        ({"mode": "lazy", "lazy_offload": True}, "either mode or lazy_offload"),
    ):
        assert said in run(capsys, "check", json.dumps(extra))[1]


def test_a_node_that_is_not_there_yet_is_no_error_but_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "node.sock"
    code, out, _ = run(capsys, "check", json.dumps({"node": str(path)}))
    assert (code, out.splitlines()[0]) == (0, "a server would take it")
    assert out.splitlines()[1] == f"nothing is at {path} yet: a server serves without a node until it comes"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert run(capsys, "check", json.dumps({"node": str(path)}))[:2] == (0, "a server would take it\n")


def test_a_node_in_a_folder_that_is_not_for_this_user_is_a_line_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stat = tmp_path / "node.sock", Path.stat

    def denied(self: Path, **options: bool) -> os.stat_result:
        if self == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", denied)
    code, out, err = run(capsys, "check", json.dumps({"node": str(path)}))
    assert (code, err) == (0, "")
    line = f"this user cannot get at {path} (Permission denied): its server would serve without a node"
    assert out.splitlines() == ["a server would take it", line]


def test_what_means_nothing_beside_a_node_is_refused_each_with_its_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    beside: dict[str, object] = {
        "host": "1GiB",
        "tiers": [{"type": "disk", "path": str(tmp_path), "size": "1MiB", "key_file": "/hunter2"}],
        "min_fetch_tokens": 5,
        "policy": "lru",
        "events": True,
    }
    code, out, _ = run(capsys, "check", json.dumps({"node": str(tmp_path / "node.sock"), **beside}))
    refused = [line for line in out.splitlines() if "no such option beside node: " in line]
    assert code == 1
    assert [line.partition("=")[0] for line in refused] == list(beside)
    for line, why in zip(refused, ("--memory SIZE", "--tier", "--tier", "--policy NAME", "other engines"), strict=True):
        assert why in line
    for other in ("host_per_rank", "cpu_bytes_to_use", "cpu_bytes_to_use_per_rank"):
        said = run(capsys, "check", json.dumps({"node": str(tmp_path / "node.sock"), other: 5}))[1]
        assert f"{other}=5: expected no such option beside node: the memory is the node's" in said
    nothing = {"tiers": [], "events": False, "mode": "lazy", "admission": "second-use", "pin_budget": 4}
    assert run(capsys, "check", json.dumps({"node": str(tmp_path / "node.sock"), **nothing}))[0] == 0


def test_what_is_no_json_costs_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(capsys, "check", "CONFIG: expected JSON, or a file with it")
    check_refused(capsys, "check /nowhere/config.json", "CONFIG='/nowhere/config.json': expected JSON, or a file")
    check_refused(capsys, "check {", "CONFIG='…': expected JSON (")
    check_refused(capsys, "check --schema {}", "CONFIG is not looked at with --schema: leave one of them out (see")


def test_the_schema_describes_all_options_and_all_types_of_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "--schema")
    schema = json.loads(out)
    assert code == 0
    assert {"host", "tiers", "mode", "cpu_bytes_to_use"} <= schema["properties"].keys()
    kinds = {kind["properties"]["type"]["enum"][0]: kind for kind in schema["properties"]["tiers"]["items"]["oneOf"]}
    assert kinds.keys() == {"disk", "mooncake", "null", "valkey"}
    assert set(kinds["disk"]["required"]) == {"type", "path", "size"}
    assert kinds["disk"]["properties"]["deadline_ms"]["maximum"] == 3_600_000


def test_vllm_is_not_imported() -> None:
    program = (
        "import sys; sys.modules['vllm'] = sys.modules['torch'] = None; "
        "from kvtide.cli import main; sys.exit(main(['check', '{\"host\": \"1MiB\"}']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    assert (done.returncode, done.stdout) == (0, "a server would take it\n")

"""The commands, as people type them."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from kvtide.cli import run as run_command
from kvtide.core import POLICIES
from kvtide.errors import ConfigError, KVTideError
from kvtide.traces import open_trace
from tests.traces.support import mooncake_line, write

SMALL = ("--requests", "80")


def run(*arguments: str) -> int:
    return run_command(arguments)


def test_without_a_file_a_synthetic_workload_is_used_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", *SMALL) == 0
    out, err = capsys.readouterr()
    assert "synthetic workload 'mixture', 80 requests" in err
    assert "Buy none" in out
    assert "Certainty" in out


def test_replay_prints_tables_and_the_source_of_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", *SMALL, "--gpu", "l4", "--gpus", "2") == 0
    out, _ = capsys.readouterr()
    assert "loaded from the host" in out
    assert out.count("NVIDIA's data sheet of the L4") == 1
    assert "    load: 55.0 GB/s (86% of PCIe 32 GB/s, 2 GPUs)\n" in out
    assert "KV of a token: 128 KiB" in out


def test_replay_takes_a_disk_and_an_admission(capsys: pytest.CaptureFixture[str]) -> None:
    disk = ("--disk", "1TiB", "--disk-bandwidth", "500GB/s", "--store", "2TiB", "--servers", "2")
    small = ("--device", "4GiB", "--host", "4GiB")
    assert run("replay", *SMALL, *small, *disk) == 0
    assert "from below to the host" in capsys.readouterr().out
    assert run("replay", *SMALL, *small, *disk, "--admission", "second-use", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tokens"]["below"] > 0
    assert result["not_stored_blocks"]["not_admitted"] > 0


def test_packed_kv_is_as_if_there_were_more_host_memory(capsys: pytest.CaptureFixture[str]) -> None:
    def loaded(*more: str) -> int:
        assert run("replay", "--requests", "300", "--device", "4GiB", *more, "--json") == 0
        tokens: int = json.loads(capsys.readouterr().out)["tokens"]["host"]
        return tokens

    plain, packed = loaded("--host", "20GiB"), loaded("--host", "20GiB", "--packing")
    assert plain < packed
    assert packed == pytest.approx(loaded("--host", "26GiB"), rel=0.02)


def test_a_plan_for_packed_kv_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", *SMALL, "--packing") == 0
    assert "packed on the host, 1.30 times less" in capsys.readouterr().out


def test_a_plan_for_packed_kv_needs_1_3_times_less_memory_for_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    def added(*more: str) -> float:
        chats = ("--workload", "chats", "--requests", "300", "--device", "4GiB", "--policies", "prefix")
        assert run("plan", *chats, *more, "--json") == 0
        (point,) = json.loads(capsys.readouterr().out)["curves"]["prefix"]
        share: float = point["added_share"]
        return share

    plain, packed = added("--sizes", "20GiB"), added("--sizes", "20GiB", "--packing")
    assert 0.05 < plain < packed - 0.01
    assert packed == pytest.approx(added("--sizes", "26GiB"), abs=0.002)


def test_a_plan_for_packed_kv_has_the_same_device(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*more: str) -> dict[str, object]:
        assert run("plan", "--workload", "chats", "--requests", "60", "--device", "1GiB", *more, "--json") == 0
        plan: dict[str, object] = json.loads(capsys.readouterr().out)
        return {name: plan[name] for name in ("requests", "too_large", "device_share")}

    assert planned("--packing") == planned()


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_f22_packing_is_not_promised_for_a_model_whose_kv_does_not_pack(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"num_hidden_layers": 8, "num_attention_heads": 8, "hidden_size": 1024, "torch_dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = (command, *SMALL, "--device", "1GiB", "--model-config", str(tmp_path / "config.json"))
    with pytest.raises(ConfigError, match=r"--packing.*a model in bfloat16: float16 does not pack.*--bytes-per-token"):
        run(*asked, "--packing")
    assert run(*asked) == 0
    assert run(*asked, "--packing", "--bytes-per-token", "32768") == 0
    (tmp_path / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    assert run(*asked, "--packing") == 0
    capsys.readouterr()


def test_a_plan_compares_all_policies_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", *SMALL, "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["curves"]) == list(POLICIES)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_without_host_memory_nothing_is_stored_or_loaded(capsys: pytest.CaptureFixture[str], mode: str) -> None:
    assert run("replay", *SMALL, "--host", "none", "--mode", mode, "--device", "4GiB", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["tokens"]["host"] == shown["evicted_blocks"] == sum(shown["bytes"].values()) == 0
    assert shown["missed"]["evicted"] > 0, "the device was too small: eager or lazy, something could have been stored"
    assert shown["tokens"]["device"] > 0


def test_the_table_of_a_plan_has_a_legend(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", *SMALL, "--policies", "lru,arc") == 0
    out = capsys.readouterr().out
    assert "\nlru, arc: share of prompt tokens that host memory adds with this policy; " in out
    assert "mean TTFT: time to first token, with lru\n" in out


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("replay",), ("plan",), ("trace", "stats")):
        assert run(*command, *SMALL, "--json") == 0
        assert json.loads(capsys.readouterr().out)["requests"] == 80


def test_a_trace_that_was_made_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "agents.jsonl"
    assert run("trace", "make", str(path), "--workload", "agents", "--requests", "30", "--seed", "7") == 0
    assert len(list(open_trace(path, strict=True))) == 30
    assert run("trace", "make", "--workload", "agents", "--requests", "30", "--seed", "7") == 0
    assert capsys.readouterr().out == path.read_text()
    assert run("trace", "stats", str(path)) == 0
    assert "different blocks" in capsys.readouterr().out
    assert run("replay", str(path), "--policy", "forecast") == 0


def test_the_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    assert run("plan", *SMALL, "--html", str(page), "--policies", "lru,forecast") == 0
    text = page.read_text()
    assert "<h1>Host memory for synthetic workload" in text
    assert "<li>measured on one H200 SXM" in text
    assert "<li>prefill: 35,794 tokens/s (16,000 tokens in 469 ms, 22 if cached)</li>" in text


def test_plots_are_written(tmp_path: Path) -> None:
    for command in ("plan", "replay"):
        assert run(command, *SMALL, "--plot", str(tmp_path / f"{command}.png")) == 0
        assert (tmp_path / f"{command}.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_plot_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(KVTideError, match="pip install 'matplotlib>="):
        run("plan", *SMALL, "--plot", str(tmp_path / "plan.png"))
    assert not list(tmp_path.iterdir())


def test_skipped_lines_are_named_and_the_rest_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", mooncake_line(), *["{"] * 9, mooncake_line(5))
    assert run("replay", str(path)) == 0
    err = capsys.readouterr().err
    assert "line 2 is skipped: not valid JSON" in err
    assert "skipped 9 lines and read 2 requests (not valid JSON: 9)" in err
    assert "line 9" not in err
    with pytest.raises(KVTideError, match="line 2"):
        run("replay", str(path), "--strict")


@pytest.mark.parametrize("command", [("plan",), ("replay",), ("trace", "stats")])
def test_every_command_totals_what_it_skipped(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t.jsonl", mooncake_line(), "{", mooncake_line(tokens=0, hashes=[]), mooncake_line(5))
    assert run(*command, str(path), "--json") == 0
    out, err = capsys.readouterr()
    assert "skipped 2 lines and read 2 requests" in err
    result = json.loads(out)
    assert (result["requests"], result["skipped_lines"]) == (2, 2)
    assert result["skipped_by"] == {"not valid JSON": 1, "no prompt": 1}


@pytest.mark.parametrize("command", [("plan",), ("replay",), ("trace", "stats")])
def test_every_command_reads_standard_input_packed_or_not(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = f"{mooncake_line()}\n{mooncake_line(5)}\n".encode()
    for data in (lines, gzip.compress(lines)):
        path = tmp_path / "t"
        path.write_bytes(data)
        with path.open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert run(*command, "-", "--json") == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["trace"], result["requests"]) == ("standard input", 2)


def test_the_rate_of_a_batch_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"messages": [{"role": "user", "content": "hello, how are you today? " * 9}]}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    assert run("plan", str(write(tmp_path / "batch", line, line)), "--rate", "4") == 0
    assert "2 requests without a time: 4 per second are taken to come" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("plan", "--policies", "lru,best"), "--policies='best'"),
        (("plan", "--sizes", ""), "--sizes='': expected a size in bytes"),
        (("plan", "--sizes", "64GiB,much"), "--sizes='much'"),
        (("plan", "--sizes", "1MiB"), "at least one block"),
        (("plan", "--html", "/nowhere/plan.html"), "a file in a folder that exists: mkdir -p /nowhere"),
        (("replay", "--host", "1MiB"), "--host='1MiB': expected at least one block"),
        (("replay", "--device", "1MiB"), "--device='1 MiB': expected at least one block"),
        (("replay", "--host", "0"), "--host='0': expected \"none\", or a size in bytes above 0"),
        (("plan", "--device", "0"), "--device='0': expected \"none\", or a size in bytes above 0"),
        (("replay", "--policy", "best"), "--policy='best'"),
        (("replay", "--mode", "never"), "--mode='never'"),
        (("replay", "--gpu", "abacus"), "--gpu='abacus'"),
        (("plan", "--gpu", "B200"), "for another GPU leave --gpu out, and give --device"),
        (("replay", "--link", "25"), "--link='25': expected bytes per second, such as \"25GB/s\"; a number alone is"),
        (("plan", "--prefill", "-1"), "--prefill='-1'"),
        (("plan", "--decode", "0"), "--decode='0'"),
        (("plan", "--link", "fast"), "--link='fast'"),
        (("plan", "--parameters", "many"), "--parameters='many'"),
        (("plan", "--parameters", "70"), "--parameters='70': expected at least a million, such as \"70B\""),
        (("plan", "--gpu", "l4", "--parameters", "70B"), "--gpus=1: expected at least 8 of the L4"),
        (("plan", "--gpu-hour", "-1"), "--gpu-hour='-1'"),
        (("plan", "--gib-hour", "nan"), "--gib-hour='nan'"),
        (("plan", "/nowhere", "--rate", "0"), "--rate='0'"),
        (("plan", "--device", "1MiB"), "--device='1 MiB': expected at least one block"),
        (("replay", "--gpus", "0"), "--gpus=0"),
        (("replay", "--servers", "0"), "--servers=0"),
        (("replay", "--admission", "never"), "--admission='never'"),
        (("replay", "--disk", "1MiB"), "--disk='1MiB': expected at least one block"),
        (("replay", "--disk", "1TiB", "--disk-bandwidth", "fast"), "--disk-bandwidth='fast'"),
        (("replay", "--disk", "1TiB", "--disk-write", "back"), "--disk-write='back'"),
        (("replay", "--store", "1MiB"), "--store='1MiB': expected at least one block"),
        (("plan", "--admission", "never"), "--admission='never'"),
        (("replay", "--requests", "few"), "--requests='few'"),
        (("replay", "--workload", "noise"), "--workload='noise'"),
        (("replay", "--model-config", "/nowhere"), "--model-config"),
        (("replay", "/nowhere"), "No such file"),
        (("trace", "make", "/nowhere/t.jsonl"), "a file in a folder that exists: mkdir -p /nowhere"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(KVTideError) as caught:
        run(*arguments)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("plan", "FILE", "--requests", "10"), "--requests=10: expected to be used without a TRACE"),
        (("replay", "FILE", "--workload", "mixture"), "--workload='mixture': expected to be used without a TRACE"),
        (("trace", "stats", "FILE", "--seed", "0"), "--seed=0: expected to be used without a TRACE"),
        (("plan", "--strict"), "--strict=True: expected to be used with a TRACE"),
        (("replay", "--rate", "2"), "--rate=2.0: expected to be used with a TRACE"),
        (("replay", "--host", "none", "--disk", "1TiB"), "--disk='1TiB': expected host memory (--host SIZE) above it"),
        (("replay", "--disk-bandwidth", "6GB/s"), "--disk-bandwidth='6GB/s': expected to be used with --disk"),
        (("replay", "--disk", "1TiB", "--store-latency", "0.001"), "--store-latency=0.001: expected to be used with"),
    ],
)
def test_what_would_be_ignored_is_refused_even_if_it_is_the_default(
    arguments: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    file = str(write(tmp_path / "t.jsonl", mooncake_line()))
    with pytest.raises(KVTideError) as caught:
        run(*[file if word == "FILE" else word for word in arguments])
    assert why in str(caught.value)


def test_rates_and_geometry_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--prefill", "5000", "--decode", "0.02", "--link", "25GB", "--bytes-per-token", "64KiB", "--json")
    assert run("replay", *SMALL, *options) == 0
    rates = json.loads(capsys.readouterr().out)["rates"]
    assert rates["store_bytes_per_s"] == {"value": 25e9, "source": "given", "how": ""}
    assert rates["overhead_s"]["how"].startswith("measured on one H200 SXM")

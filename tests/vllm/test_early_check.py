"""A mistyped option ends the server before it loads anything, and is the last thing that it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.engine.arg_utils import EngineArgs

from kvtide.errors import ConfigError
from kvtide.vllm import early_check, plugin
from kvtide.vllm.early_check import OptionsRefused, check_arguments
from tests.vllm.llm import BLOCK_TOKENS


def transfer(extra: dict[str, object]) -> dict[str, object]:
    return {"kv_connector": plugin.NAME, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def test_a_server_with_mistyped_options_ends_before_the_weights_load_with_all_of_them_last(llama: Path) -> None:
    store = {"type": "valkey", "url": "valkey://kv:hunter2@127.0.0.1", "pasword": "hunter2"}
    wrong = transfer(
        {"hots": "16MiB", "tiers": [{"type": "disk", "path": "/nowhere", "size": "1GiB", "thread": 3}, store]}
    )
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(llama)]
    command += ["--host", "127.0.0.1", "--port", "0", "--skip-tokenizer-init", "--dtype", "float32"]
    command += ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", "48", "--max-model-len", "768"]
    command += ["--enforce-eager", "--kv-transfer-config", json.dumps(wrong)]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    done = subprocess.run(  # noqa: S603 (our own words)
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert "kvtide: error: hots='16MiB': expected a known option; did you mean \"host\"?" in lines[-4]
    assert 'kvtide: error: tiers[0].thread=3: expected a known option; did you mean "threads"?' in lines[-3]
    assert lines[-2].startswith("kvtide: error: tiers[0].path='/nowhere': expected a folder that exists")
    assert lines[-1].startswith("kvtide: error: tiers[1].pasword='***': expected a known option")
    assert "valkey://kv:***@127.0.0.1" in done.stdout, "vLLM prints its arguments"
    assert "hunter2" not in done.stdout
    for said in ("Loading weights", "Starting to load model", "EngineCore", "Traceback"):
        assert said not in done.stdout


def test_arguments_are_checked_before_they_become_a_configuration(llama: Path) -> None:
    plugin.register()
    arguments = EngineArgs(model=str(llama), kv_transfer_config=transfer({"hots": 1}))
    with pytest.raises(ConfigError, match="hots"):
        arguments.create_engine_config()


def test_the_method_is_wrapped_once(llama: Path) -> None:
    plugin.register()
    once = EngineArgs.create_engine_config
    plugin.register()
    assert EngineArgs.create_engine_config is once


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (None, 0),
        (transfer({"host": "1GiB"}), 0),
        ({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"hots": 1}}, 0),
        ({"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [transfer({"hots": 1})]}}, 1),
        (SimpleNamespace(**transfer({"hots": 1, "mode": "fast"})), 2),
    ],
)
def test_all_of_kvtides_options_are_looked_at_and_nobody_elses(config: Any, wrong: int) -> None:
    assert len(problems(SimpleNamespace(kv_transfer_config=config))) == wrong


def problems(arguments: object) -> tuple[ConfigError, ...]:
    try:
        check_arguments(arguments)
    except OptionsRefused as refused:
        return refused.errors
    return ()


def arguments_of(model: Path, extra: dict[str, object], **more: Any) -> EngineArgs:
    return EngineArgs(model=str(model), skip_tokenizer_init=True, kv_transfer_config=transfer(extra), **more)


def refused(arguments: EngineArgs) -> list[str]:
    """Return what is wrong when the arguments become a configuration."""
    plugin.register()
    with pytest.raises(OptionsRefused) as found:
        arguments.create_engine_config()
    return [str(error) for error in found.value.errors]


def disk(path: object, **more: object) -> dict[str, object]:
    return {"host": "1MiB", "tiers": [{"type": "disk", "path": str(path), "size": "1MiB", **more}]}


def test_folders_of_all_engines_of_this_machine_are_looked_at(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    wrong = refused(arguments_of(llama, disk(tmp_path / "{dp_rank}", thread=3), data_parallel_size=2))
    assert [line.partition(":")[0] for line in wrong] == ["tiers[0].thread=3", f"tiers[0].path='{tmp_path}/1'"]
    assert "{dp_rank} in it" in refused(arguments_of(llama, disk(tmp_path), data_parallel_size=2))[0]


def test_folders_of_engines_on_other_machines_are_not(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    plugin.register()
    elsewhere = {"data_parallel_size": 2, "data_parallel_size_local": 1, "data_parallel_start_rank": 1}
    arguments_of(llama, disk(tmp_path / "{dp_rank}"), **elsewhere).create_engine_config()


def test_more_memory_than_the_machine_has_is_refused_at_once(llama: Path) -> None:
    for name in ("host", "host_per_rank"):
        [wrong] = refused(arguments_of(llama, {name: "900TB"}))
        assert re.fullmatch(r"host\w*='900TB': expected at most the \d+ bytes that this machine has", wrong)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    [wrong] = refused(arguments_of(llama, {"host": total * 3 // 4}, data_parallel_size=2))
    assert "for 2 engines (--data-parallel-size) together" in wrong


def test_keys_that_differ_in_each_process_are_refused_at_once_beside_tiers(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    [wrong] = refused(arguments_of(llama, disk(tmp_path), prefix_caching_hash_algo="xxhash"))
    assert wrong.startswith("tiers=['disk']: expected keys that outlive a process")
    arguments_of(llama, disk(tmp_path), enable_prefix_caching=False).create_engine_config()


def test_an_executor_that_hears_one_rank_is_refused_at_once(llama: Path) -> None:
    two = {"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 2}
    [wrong] = refused(arguments_of(llama, {"host": "1MiB"}, **two))
    assert wrong.startswith("distributed_executor_backend='external_launcher': expected one scheduler")


def test_other_errors_are_shown_as_ever(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda _, error, __: seen.append(error))
    early_check._say_it_without_traceback()
    other = ValueError("x")
    sys.excepthook(ValueError, other, None)
    assert seen == [other]
    refused = OptionsRefused([ConfigError("host", 1, "more"), ConfigError("mode", 2, "less")])
    sys.excepthook(OptionsRefused, refused, None)
    assert capsys.readouterr().err == "kvtide: error: host=1: expected more\nkvtide: error: mode=2: expected less\n"

"""A mistyped option ends the server before it loads anything, and is the last thing that it says."""

from __future__ import annotations

import json
import os
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
    wrong = transfer({"hots": "16MiB", "tiers": [{"type": "disk", "path": "/nowhere", "size": "1GiB", "thread": 3}]})
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
    assert "kvtide: error: hots='16MiB': expected a known option; did you mean \"host\"?" in lines[-3]
    assert 'kvtide: error: tiers[0].thread=3: expected a known option; did you mean "threads"?' in lines[-2]
    assert lines[-1].startswith("kvtide: error: tiers[0].path='/nowhere': expected a folder that exists")
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


def test_folders_of_engines_that_may_run_elsewhere_are_not_looked_for_here() -> None:
    disk = transfer({"tiers": [{"type": "disk", "path": "/nowhere/{dp_rank}", "size": "1GiB"}]})
    check_arguments(SimpleNamespace(kv_transfer_config=disk, data_parallel_size=2))
    with pytest.raises(OptionsRefused, match="nowhere"):
        check_arguments(SimpleNamespace(kv_transfer_config=disk, data_parallel_size=1))


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

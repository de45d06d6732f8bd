from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from kvtide.engine import EngineConfig, ModelConfig
from kvtide.engine.keys import extend_keys, namespace
from tests.engine.support import prompt, tiny_config


def keys_of(tokens: list[int]) -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, tokens, 4, b"root")
    return keys


def test_only_full_blocks_have_keys() -> None:
    assert [len(keys_of(prompt(0, length))) for length in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_keys_are_the_same_however_tokens_become_known() -> None:
    tokens = prompt(0, 23)
    keys: list[bytes] = []
    for length in range(len(tokens) + 1):
        extend_keys(keys, tokens[:length], 4, b"root")
    assert keys == keys_of(tokens)


def test_a_key_stands_for_the_whole_prefix() -> None:
    tokens = prompt(0, 16)
    other = [tokens[0] + 1, *tokens[1:]]
    assert not set(keys_of(tokens)) & set(keys_of(other))
    assert keys_of(tokens[:8] + other[8:])[:2] == keys_of(tokens)[:2]


def test_f23_keys_depend_on_what_the_bytes_depend_on() -> None:
    config = tiny_config()
    assert namespace(config) == namespace(replace(config, device_blocks=9, step_tokens=5, ranks=2))
    for other in (replace(config, block_tokens=4), replace(config, model=replace(config.model, seed=1))):
        assert namespace(other) != namespace(config)


def test_f23_keys_are_the_same_in_every_process() -> None:
    code = (
        "from kvtide.engine import EngineConfig, ModelConfig\n"
        "from kvtide.engine.keys import extend_keys, namespace\n"
        "config, keys = EngineConfig(model=ModelConfig(), device_blocks=9), []\n"
        "extend_keys(keys, list(range(20)), 4, namespace(config))\n"
        "print(keys[-1].hex())"
    )
    keys: list[bytes] = []
    extend_keys(keys, list(range(20)), 4, namespace(EngineConfig(model=ModelConfig(), device_blocks=9)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == keys[-1].hex()

"""What else belongs to the identity of a block: adapters and salts. Blocks that differ in them are never shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest

from tests.vllm.fixtures import PROMPTS
from tests.vllm.llm import Engine, Result, as_result, engine, params
from tests.vllm.models import write_lora
from tests.vllm.test_round_trip import assert_same, hit

TOKENS = PROMPTS[4]


def say(started: Engine, lora: LoRARequest | None = None, salt: str | None = None) -> Result:
    """Serve one prompt as someone else."""
    asked: dict[str, Any] = {"prompt_token_ids": TOKENS}
    if salt is not None:
        asked["cache_salt"] = salt
    [output] = started.llm.generate([asked], params(4), use_tqdm=False, lora_request=lora)
    return as_result(output)


def test_two_adapters_and_the_model_itself_share_nothing(llama: Path, tmp_path: Path) -> None:
    adapters = [LoRARequest(f"adapter {n}", n, str(write_lora(tmp_path / f"lora{n}", n))) for n in (1, 2)]
    voices = [None, *adapters]
    lora: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    with engine(llama, None, **lora) as plain:
        expected = [say(plain, voice) for voice in voices]
    assert len({result.logprobs for result in expected}) == 3
    with engine(llama, **lora) as offloading:
        for voice, result in zip(voices, expected, strict=True):
            first = say(offloading, voice)
            assert first.cached_tokens == 0
            assert_same([first], [result])
            offloading.forget_device()
        for voice, result in zip(voices, expected, strict=True):
            again = say(offloading, voice)
            assert again.cached_tokens == hit(TOKENS)
            assert_same([again], [result])
        assert offloading.metrics.stored_blocks == 3 * (len(TOKENS) // 32)
        offloading.check_at_rest()


def test_a_salt_keeps_prompts_apart(llama: Path) -> None:
    with engine(llama) as offloading:
        for salt in (None, "mine", "yours"):
            assert say(offloading, salt=salt).cached_tokens == 0
            offloading.forget_device()
        loaded = offloading.metrics.loaded_tokens
        assert loaded == 0
        for salt in ("yours", None, "mine"):
            assert say(offloading, salt=salt).cached_tokens == hit(TOKENS)
        assert offloading.metrics.loaded_tokens == 3 * hit(TOKENS)
        offloading.check_at_rest()

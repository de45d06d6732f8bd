"""Speculative decoding on real models: refused guesses are not stored, EAGLE and MTP drop the last block of a hit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vllm.distributed.kv_transfer import get_kv_transfer_group

from tests.vllm.llm import BLOCK_TOKENS, Engine, Result, engine, prompt
from tests.vllm.models import write_eagle_head, write_llama, write_mimo
from tests.vllm.test_round_trip import assert_same, hit

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
PROMPTS = [prompt(seed, 40) * 5 + prompt(seed, length) for seed, length in ((50, 11), (51, 30), (52, 39), (53, 7))]
"""They repeat themselves, so that there is something to guess."""
NEW_TOKENS = 70
"""More than two blocks."""
GUESSED_TOKENS = 16
"""Enough to see that guesses are the same."""


def drafted(offloading: Any) -> tuple[int, int]:
    """Return how many tokens were guessed and how many of them were right."""
    found = {metric.name: metric.value for metric in offloading.llm.get_metrics() if hasattr(metric, "value")}
    return found["vllm:spec_decode_num_draft_tokens"], found["vllm:spec_decode_num_accepted_tokens"]


@pytest.mark.apart  # numba, which proposes n-grams, keeps this vLLM from starting another engine
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_guesses_that_were_refused_are_not_stored(llama: Path, mode: str) -> None:
    with engine(llama, None) as plain:
        expected = plain.generate(*PROMPTS, max_tokens=NEW_TOKENS)
        turns = [[*tokens, *answer.tokens] for tokens, answer in zip(PROMPTS, expected, strict=True)]
        follow_ups = plain.generate(*turns)
    with engine(llama, mode, speculative_config=NGRAM) as offloading:
        assert_same(offloading.generate(*PROMPTS, max_tokens=NEW_TOKENS, together=True), expected)
        guessed, right = drafted(offloading)
        assert guessed - right > NEW_TOKENS
        offloading.generate(*(prompt(seed, 700) for seed in range(60, 64)))  # drives the others out
        offloading.drain()
        again = offloading.generate(*turns)
        assert_same(again, follow_ups)
        assert [result.cached_tokens for result in again] == [hit(turn) for turn in turns]
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()


@dataclass(frozen=True)
class Guessing:
    """A model, what guesses for it from its hidden states, and what it says without."""

    model: Path
    config: dict[str, Any]
    expected: list[Result]


def eagle(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a model, and the configuration of a head that guesses for it."""
    head = write_eagle_head(path / "eagle")
    return write_llama(path / "llama"), {"method": "eagle", "model": str(head), "num_speculative_tokens": 2}


def mtp(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a model with a layer that guesses."""
    return write_mimo(path / "mimo"), {"method": "mtp", "num_speculative_tokens": 1}


@pytest.fixture(scope="module", params=[eagle, mtp])
def guessing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Guessing:
    model, config = request.param(tmp_path_factory.mktemp("guessing"))
    with engine(model, None) as plain:
        return Guessing(model, config, plain.generate(*PROMPTS, max_tokens=GUESSED_TOKENS))


def generate_and_note_guesses(offloading: Engine, prompts: list[list[int]]) -> tuple[list[Result], list[list[int]]]:
    """Run prompts; return the results and all that was guessed on the way."""
    guesses: list[list[int]] = []
    scheduler = offloading.scheduler
    update = scheduler.update_draft_token_ids

    def note(drafts: Any) -> None:
        guesses.extend(drafts.draft_token_ids)
        update(drafts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "update_draft_token_ids", note)
        return offloading.generate(*prompts, max_tokens=GUESSED_TOKENS), guesses


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_the_last_block_of_a_hit_is_computed_again(guessing: Guessing, mode: str) -> None:
    """And what is loaded is right for the guessing layer, too: it guesses the same again."""
    with engine(guessing.model, mode, speculative_config=guessing.config) as offloading:
        assert offloading.side._layout.drops_last_block
        results, guesses = generate_and_note_guesses(offloading, PROMPTS)
        assert_same(results, guessing.expected)
        assert len(guesses) > GUESSED_TOKENS
        offloading.generate(*(prompt(seed, 700) for seed in range(60, 64)))  # drives the others out
        offloading.drain()
        before = offloading.metrics.loaded_tokens
        again, guesses_again = generate_and_note_guesses(offloading, PROMPTS)
        assert_same(again, guessing.expected)
        assert guesses_again == guesses
        assert [result.cached_tokens for result in again] == [hit(tokens) - BLOCK_TOKENS for tokens in PROMPTS]
        assert offloading.metrics.loaded_tokens - before == sum(result.cached_tokens for result in again)
        offloading.forget_device()
        spoil_last_layer()
        still, other_guesses = generate_and_note_guesses(offloading, PROMPTS)
        assert_same(still, guessing.expected)
        assert other_guesses != guesses, "a wrong block of the guessing layer has to show"
        offloading.check_at_rest()


def spoil_last_layer() -> None:
    """Overwrite the part of every host slot that belongs to the layer that guesses."""
    slots = get_kv_transfer_group()._worker._arena.memory
    slots[:, slots.shape[1] // 5 * 4 :] = 0

"""Tiers under the embedded engine: a restart finds what sank before, and what comes out is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtide.core.below.fetch_break_even import FetchBreakEven
from kvtide.engine import Engine, EngineConfig, ModelConfig
from kvtide.errors import ConfigError


@pytest.fixture(autouse=True)
def fetching_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first fetch that a busy machine held up would make computing look faster, and no other one be tried."""
    monkeypatch.setattr(FetchBreakEven, "pays", lambda *_: True)


PROMPTS = {f"r{number}": [(7 * number + 13 * at + number * at * at) % 60 for at in range(200)] for number in range(3)}


def config(*, window_tokens: int | None = None, ranks: int = 1) -> EngineConfig:
    model = ModelConfig(
        layers=2, hidden=32, heads=2, kv_heads=2, head_dim=16, mlp=32, vocab=64, window_tokens=window_tokens
    )
    return EngineConfig(model=model, device_blocks=512, step_tokens=64, ranks=ranks)


def options(path: Path, **more: object) -> dict[str, object]:
    disk = {"type": "disk", "path": str(path), "size": "64MiB", "deadline_ms": 10_000}
    return {"host": "4MiB", "min_fetch_tokens": 16, "tiers": [disk], **more}


def run(setup: EngineConfig, offload: dict[str, object] | None) -> tuple[dict[str, tuple[int, ...]], Any]:
    with Engine(setup, offload=offload) as engine:
        for name, tokens in PROMPTS.items():
            engine.submit(name, tokens, 4)
        said = {completion.request_id: completion.tokens for completion in engine.run()}
        return said, engine.manager.metrics if engine.manager is not None else None


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("window_tokens", [None, 40])
def test_a_restart_finds_on_the_disk_what_was_computed_before(
    tmp_path: Path, ranks: int, window_tokens: int | None
) -> None:
    setup = config(window_tokens=window_tokens, ranks=ranks)
    expected, _ = run(setup, None)
    first, before = run(setup, options(tmp_path))
    second, after = run(setup, options(tmp_path))
    assert expected == first == second
    assert before.sunk_blocks > 0
    assert after.fetched_blocks > 0
    assert after.loaded_tokens == 3 * 192, "all whole blocks, without the last token"


def test_f23_another_model_finds_nothing(tmp_path: Path) -> None:
    run(config(), options(tmp_path))
    _, metrics = run(config(window_tokens=40), options(tmp_path))
    assert metrics.fetched_blocks == 0


def test_f9_a_reset_empties_the_disk(tmp_path: Path) -> None:
    with Engine(config(), offload=options(tmp_path)) as engine:
        engine.submit("r", PROMPTS["r0"], 4)
        engine.run()
        engine.reset()
        engine.run()
    _, metrics = run(config(), options(tmp_path))
    assert metrics.fetched_blocks == 0


def test_a_tier_that_keeps_nothing_changes_nothing() -> None:
    expected, _ = run(config(), None)
    said, metrics = run(config(), {"host": "1MiB", "min_fetch_tokens": 16, "tiers": [{"type": "null"}]})
    assert said == expected
    assert metrics.lookups == 3
    assert metrics.fetched_blocks == 0


def test_bad_tiers_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="path"):
        Engine(config(), offload=options(tmp_path / "nowhere" / "at" / "all"))

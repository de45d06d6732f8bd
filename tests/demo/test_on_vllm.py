"""The command line of the demo on vLLM, which needs no vLLM."""

from __future__ import annotations

import pytest

from kvtide.demo import on_vllm


def test_a_mistyped_option_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        on_vllm.COMMAND.main(["--smal"])
    assert left.value.code == 2
    assert "--small" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_what_the_run_found_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(on_vllm, "run", lambda args: code)
    with pytest.raises(SystemExit) as left:
        on_vllm.COMMAND.main([])
    assert left.value.code == code

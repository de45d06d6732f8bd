"""An engine that has more to say than a frame can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtide.core.index.calls import LookUp, Ready
from kvtide.node.hello import Hello, Role
from kvtide.node.index_link import IndexLink
from tests.node.support import serving, wait_until


def test_a_call_that_does_not_fit_costs_a_life_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtide.node.index_link.BODY_BYTES_MAX", 1000)
    lines: list[str] = []
    with serving(tmp_path) as rig:
        link = IndexLink(rig.path, Hello(Role.SCHEDULER, engine="e", namespace={"parts": [1]}), lines.append)
        wait_until(lambda: link.receive() or link.life is not None)
        link.send(Ready(1))
        lives = [link.life]
        link.send(LookUp(1, [[b"k" * 32] * 40], 0, 641, [0]))
        lives.append(link.life)
        assert "a call of 13" in lines[-1]
        wait_until(lambda: link.receive() or link.life is not None)
        assert [*lives, link.life] == [1, None, 2]
        link.close()

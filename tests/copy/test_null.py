from __future__ import annotations

import pytest

from kvtide.copy import Direction, NullCopyEngine, Traffic
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError
from tests.contracts.copy_contract import ReportingContract, Rig, Shape


class NullRig(Rig):
    def read_block(self, block: int) -> bytes:
        return b""

    def write_block(self, block: int, content: bytes) -> None:
        pass

    def read_slot(self, slot: int) -> bytes:
        return b""

    def write_slot(self, slot: int, content: bytes) -> None:
        pass


class TestNullCopyEngine(ReportingContract):
    def build(self, shape: Shape, *, max_transfers: int) -> Rig:
        return NullRig(NullCopyEngine(max_transfers=max_transfers), shape)


def test_it_counts_transfers_but_no_bytes() -> None:
    engine = NullCopyEngine()
    engine.submit(Direction.LOAD, Copy(1, (0, 1), (0, 1)))
    assert engine.traffic(Direction.LOAD) == Traffic(transfers=1)
    assert engine.traffic(Direction.STORE) == Traffic()


def test_a_bound_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_transfers"):
        NullCopyEngine(max_transfers=0)

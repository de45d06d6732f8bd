from __future__ import annotations

import threading

import pytest

from kvtide.copy import HostArena, libc
from kvtide.copy.cuda import pinning
from kvtide.copy.cuda.pinning import Pinner
from kvtide.core.messages import Copy
from kvtide.core.share import Share
from tests.contracts.copy_contract import PATIENCE_S, STORE, Shape
from tests.copy.cuda.fake_gpu import FakeGpu
from tests.copy.cuda.test_engine import FakeRig
from tests.node.support import wait_until

MIB = 1 << 20


class SlowGpu(FakeGpu):
    """Pins one piece each time it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)

    def pin(self, address: int, nbytes: int) -> None:
        self.arrived.release()
        assert self.allowed.acquire(timeout=PATIENCE_S)
        super().pin(address, nbytes)


def test_f20_the_tier_grows_piece_by_piece() -> None:
    gpu = SlowGpu()
    arena = HostArena(slots=10, slot_bytes=MIB)
    pinner = Pinner(gpu, arena, piece_bytes=4 * MIB)
    seen = []
    for _ in range(3):
        assert gpu.arrived.acquire(timeout=PATIENCE_S)
        seen.append(pinner.usable_slots)
        gpu.allowed.release()
    assert pinner.wait(PATIENCE_S)
    assert (seen, pinner.usable_slots, pinner.problem) == ([0, 4, 8], 10, None)
    assert sorted(gpu.pinned.values()) == [2 * MIB, 4 * MIB, 4 * MIB]
    assert pinner.close(PATIENCE_S)
    assert not gpu.pinned


def test_f20_most_is_pinned_when_the_serving_engine_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "FIRST_BYTES", 4 * MIB)
    gpu = FakeGpu()
    pinner = Pinner(gpu, HostArena(slots=10, slot_bytes=MIB), piece_bytes=2 * MIB, starting=True)
    wait_until(lambda: pinner.usable_slots == 4)
    assert not pinner.wait(0.1), "the rest waits"
    assert pinner.usable_slots == 4
    pinner.started()
    assert pinner.wait(PATIENCE_S)
    assert pinner.usable_slots == 10
    assert pinner.close(PATIENCE_S)


def test_pinning_ends_though_the_serving_engine_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "FIRST_BYTES", 4 * MIB)
    gpu = FakeGpu()
    pinner = Pinner(gpu, HostArena(slots=10, slot_bytes=MIB), piece_bytes=2 * MIB, starting=True)
    wait_until(lambda: pinner.usable_slots == 4)
    assert pinner.close(PATIENCE_S)
    assert not gpu.pinned


def pages_made(monkeypatch: pytest.MonkeyPatch, share: Share) -> list[int]:
    """Pin an arena of which others have a mapping too; return the pages in the order in which they are made."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(libc, "madvise", lambda address, nbytes, _: made.append((address, nbytes)))
    monkeypatch.setattr(pinning, "_POPULATING_THREADS", 1)
    arena = HostArena(slots=9, slot_bytes=MIB, share=share)
    pinner = Pinner(FakeGpu(), arena, piece_bytes=8 * MIB)
    assert pinner.wait(PATIENCE_S)
    assert pinner.close(PATIENCE_S)
    assert [nbytes for _, nbytes in made] == [2 * MIB] * 4 + [MIB]
    return [(address - int(arena.memory.ctypes.data)) // (2 * MIB) for address, _ in made]


def test_f27_processes_that_pin_the_same_memory_begin_elsewhere_in_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages_made(monkeypatch, Share(0, 2)) == [0, 1, 2, 3, 4]
    assert pages_made(monkeypatch, Share(1, 2)) == [2, 3, 0, 1, 4]
    assert pages_made(monkeypatch, Share(7, 8)) == [3, 0, 1, 2, 4]


def test_several_threads_make_every_page_of_a_piece_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(libc, "madvise", lambda address, _nbytes, _advice: made.append(address))
    arena = HostArena(slots=13, slot_bytes=MIB)
    pinner = Pinner(FakeGpu(), arena, piece_bytes=6 * MIB)
    assert pinner.wait(PATIENCE_S)
    assert pinner.close(PATIENCE_S)
    first = int(arena.memory.ctypes.data)
    assert sorted(made) == [first + page * 2 * MIB for page in range(7)]


def test_f20_slots_that_are_pinned_are_served_and_the_others_fail_their_transfer() -> None:
    shape = Shape(blocks=8, slots=40, fragments=(MIB // 8,))
    rig = FakeRig(shape)
    rig.engine.pinning.pinned_bytes = 2 * MIB  # as if the rest were still to come
    assert rig.engine.usable_slots == 16
    assert rig.run(STORE, Copy(1, (3,), (15,))).done == (1,)
    assert rig.read_slot(15) == rig.read_block(3)
    done, failed, _ = rig.run(STORE, Copy(2, (3,), (16,)))
    assert not done
    assert "slot 16 is not pinned" in failed[0][1]
    rig.engine.pinning.pinned_bytes = 5 * MIB
    assert rig.run(STORE, Copy(3, (3,), (16,))).done == (3,)
    assert rig.engine.close(PATIENCE_S)


def test_too_little_lockable_memory_leaves_the_tier_at_what_there_is_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpu = FakeGpu(pin_limit_bytes=5 * MIB)
    arena = HostArena(slots=5, slot_bytes=2 * MIB)
    pinner = Pinner(gpu, arena, piece_bytes=2 * MIB)
    assert pinner.wait(PATIENCE_S)
    assert pinner.usable_slots == 2
    assert pinner.problem == "MemoryError: not so much can be locked"
    assert "the host tier stays at that" in caplog.text
    assert pinner.close(PATIENCE_S)
    assert not gpu.pinned


def test_a_slot_may_lie_in_two_pieces() -> None:
    gpu = FakeGpu()
    pinner = Pinner(gpu, HostArena(slots=3, slot_bytes=3 * MIB), piece_bytes=2 * MIB)
    assert pinner.wait(PATIENCE_S)
    assert len(gpu.pinned) == 5
    assert pinner.usable_slots == 3
    assert pinner.close(PATIENCE_S)


def test_any_thread_can_unpin_and_what_stays_pinned_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The engine of a life that is over is closed in a thread of its own, which has not used the GPU yet."""
    gpu = FakeGpu()
    pinners = [Pinner(gpu, HostArena(slots=3, slot_bytes=2 * MIB), piece_bytes=2 * MIB) for _ in range(2)]
    assert all(pinner.wait(PATIENCE_S) for pinner in pinners)
    gpu.failing["unpin"] = RuntimeError("it is busy")
    for pinner in pinners:
        closing = threading.Thread(target=pinner.close)
        closing.start()
        closing.join(PATIENCE_S)
    assert len(gpu.pinned) == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    expected = "1 pieces of host memory may stay pinned until this process ends: RuntimeError: it is busy"
    assert warnings == [expected]


def test_closing_in_the_middle_stops_after_the_piece_at_hand_and_unpins() -> None:
    gpu = SlowGpu()
    pinner = Pinner(gpu, HostArena(slots=10, slot_bytes=MIB), piece_bytes=2 * MIB)
    assert gpu.arrived.acquire(timeout=PATIENCE_S)
    assert not pinner.close(0.0), "a piece is being pinned"
    gpu.allowed.release()
    assert pinner.close(PATIENCE_S)
    assert not gpu.pinned
    assert pinner.usable_slots == 0

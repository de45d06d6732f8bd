"""What every copy engine has to keep. A new implementation passes by subclassing the suite and building a rig.

`ReportingContract` is about transfers and reports, and holds for engines that move nothing. `MovingContract` adds
the bytes, and what can go wrong with them.
"""

from __future__ import annotations

import contextlib
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from kvtide.copy import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.core.messages import Copy

STORE, LOAD = Direction.STORE, Direction.LOAD
PATIENCE_S = 30.0
"""A deadline that only a broken engine meets."""


@dataclass(frozen=True)
class Shape:
    """A device cache and a host arena, in numbers. `padding` bytes lie behind each fragment on the device."""

    blocks: int = 12
    slots: int = 9
    fragments: tuple[int, ...] = (48, 16, 16)
    padding: int = 0

    @property
    def block_bytes(self) -> int:
        return sum(self.fragments)


@dataclass
class Gate:
    """A fence that holds a transfer back until it is opened; `reached` is set when the engine stands before it."""

    after: Fence
    reached: threading.Event
    open: Callable[[], None]


class Rig(ABC):
    """An engine between a device and a host whose bytes the tests can see."""

    def __init__(self, engine: CopyEngine, shape: Shape) -> None:
        self.engine = engine
        self.shape = shape

    @abstractmethod
    def read_block(self, block: int) -> bytes: ...

    @abstractmethod
    def write_block(self, block: int, content: bytes) -> None: ...

    @abstractmethod
    def read_slot(self, slot: int) -> bytes: ...

    @abstractmethod
    def write_slot(self, slot: int, content: bytes) -> None: ...

    def read_padding(self) -> bytes:
        """Return the device bytes that belong to no block; no copy may change them."""
        return b""

    def gate(self) -> Gate:
        """Return a closed gate. An engine whose fences run elsewhere than in its threads overrides this."""
        opened, reached = threading.Event(), threading.Event()

        def after() -> None:
            reached.set()
            opened.wait(PATIENCE_S)

        return Gate(after, reached, opened.set)

    def finish(self, *ids: int) -> Finished:
        """Wait for transfers and return what the engine has to say."""
        assert self.engine.wait(ids, PATIENCE_S)
        return self.engine.poll()

    def run(self, direction: Direction, copy: Copy, after: Fence | None = None) -> Finished:
        assert self.engine.submit(direction, copy, after)
        return self.finish(copy.id)


class ReportingContract(ABC):
    """Holds for every copy engine."""

    @abstractmethod
    def build(self, shape: Shape, *, max_transfers: int) -> Rig:
        """Return a rig of the engine under test."""

    def release(self, rig: Rig) -> None:  # noqa: B027 - most rigs have nothing to release
        """Give back what `build` took, after the engine was closed."""

    @contextlib.contextmanager
    def rig(self, shape: Shape | None = None, *, max_transfers: int = 64) -> Iterator[Rig]:
        rig = self.build(shape or Shape(), max_transfers=max_transfers)
        try:
            yield rig
        finally:
            rig.engine.close(PATIENCE_S)
            self.release(rig)

    def test_a_transfer_is_reported_exactly_once(self) -> None:
        with self.rig() as rig:
            assert rig.run(STORE, Copy(5, (1, 2), (0, 3))) == Finished(done=(5,))
            assert rig.engine.poll() == Finished()

    def test_many_transfers_are_each_reported_exactly_once(self) -> None:
        with self.rig() as rig:
            for i in range(50):
                assert rig.engine.submit(STORE, Copy(i, (i % 12,), (i % 9,)))
            seen: list[int] = []
            while len(seen) < 50:
                assert rig.engine.wait(range(50), PATIENCE_S)
                done, failed, _ = rig.engine.poll()
                assert not failed
                seen += done
            assert sorted(seen) == list(range(50))
            assert rig.engine.poll() == Finished()

    def test_a_transfer_that_is_in_flight_is_not_taken_twice(self) -> None:
        with self.rig() as rig:
            assert rig.engine.submit(STORE, Copy(1, (0,), (0,)))
            assert rig.engine.submit(STORE, Copy(1, (0,), (0,)))
            assert rig.finish(1) == Finished(done=(1,))
            assert rig.engine.traffic(STORE).transfers == 1

    def test_an_id_can_be_used_again_after_its_report(self) -> None:
        with self.rig() as rig:
            assert rig.run(STORE, Copy(1, (0,), (0,))).done == (1,)
            assert rig.run(LOAD, Copy(1, (0,), (0,))).done == (1,)

    @pytest.mark.parametrize("direction", Direction)
    def test_a_transfer_of_nothing_is_done(self, direction: Direction) -> None:
        with self.rig() as rig:
            assert rig.run(direction, Copy(1, (), ())) == Finished(done=(1,))

    def test_polling_an_engine_that_has_nothing_to_do_says_nothing(self) -> None:
        with self.rig() as rig:
            assert rig.engine.poll() == Finished()

    def test_waiting_does_not_swallow_reports(self) -> None:
        with self.rig() as rig:
            rig.engine.submit(STORE, Copy(1, (0,), (0,)))
            assert rig.engine.wait([1], PATIENCE_S)
            assert rig.engine.wait([1], PATIENCE_S)
            assert rig.engine.poll().done == (1,)

    def test_waiting_for_unknown_or_reported_transfers_returns_at_once(self) -> None:
        with self.rig() as rig:
            rig.run(STORE, Copy(1, (0,), (0,)))
            assert rig.engine.wait([1, 999], 0.0)
            assert rig.engine.wait([], 0.0)

    def test_more_transfers_than_fit_are_refused_and_never_reported(self) -> None:
        with self.rig(max_transfers=3) as rig:
            answers = [rig.engine.submit(STORE, Copy(i, (i,), (i,))) for i in range(5)]
            assert answers == [True, True, True, False, False]
            assert sorted(rig.finish(0, 1, 2).done) == [0, 1, 2]
            assert rig.run(STORE, Copy(3, (3,), (3,))) == Finished(done=(3,))

    def test_close_can_be_called_again(self) -> None:
        with self.rig() as rig:
            assert rig.engine.close(PATIENCE_S)
            assert rig.engine.close(PATIENCE_S)

    def test_a_closed_engine_refuses_transfers_and_reports_what_had_ended(self) -> None:
        with self.rig() as rig:
            rig.engine.submit(STORE, Copy(1, (0,), (0,)))
            assert rig.engine.wait([1], PATIENCE_S)
            assert rig.engine.close(PATIENCE_S)
            assert not rig.engine.submit(STORE, Copy(2, (0,), (0,)))
            assert rig.engine.poll() == Finished(done=(1,))
            assert rig.engine.poll() == Finished()

    def test_close_leaves_no_thread_behind(self) -> None:
        before = set(threading.enumerate())
        with self.rig() as rig:
            rig.run(STORE, Copy(1, (0,), (0,)))
            assert rig.engine.close(PATIENCE_S)
            assert set(threading.enumerate()) <= before


SHAPES = [
    Shape(),
    Shape(blocks=1, slots=1, fragments=(1,)),
    Shape(blocks=7, slots=20, fragments=(13, 1, 250), padding=3),
    Shape(blocks=16, slots=16, fragments=(256,) * 6),
    Shape(blocks=16, slots=11, fragments=(1024, 1025, 1024), padding=64),
    Shape(blocks=9, slots=8, fragments=(4096,) * 4, padding=128),
    Shape(blocks=5, slots=6, fragments=(200_000, 200_000)),
    Shape(blocks=40, slots=64, fragments=(65_536,)),
]


def _fill(rig: Rig, rng: random.Random) -> None:
    """Give every block and slot bytes of its own."""
    for block in range(rig.shape.blocks):
        rig.write_block(block, rng.randbytes(rig.shape.block_bytes))
    for slot in range(rig.shape.slots):
        rig.write_slot(slot, rng.randbytes(rig.shape.block_bytes))


def _blocks(rig: Rig) -> list[bytes]:
    return [rig.read_block(block) for block in range(rig.shape.blocks)]


def _slots(rig: Rig) -> list[bytes]:
    return [rig.read_slot(slot) for slot in range(rig.shape.slots)]


def _random_copy(id_: int, shape: Shape, rng: random.Random) -> Copy:
    """Pair blocks and slots, sometimes scattered and sometimes in runs."""
    pairs = rng.randint(1, min(shape.blocks, shape.slots))
    if rng.random() < 0.5:
        first_block, first_slot = rng.randint(0, shape.blocks - pairs), rng.randint(0, shape.slots - pairs)
        blocks, slots = range(first_block, first_block + pairs), range(first_slot, first_slot + pairs)
        return Copy(id_, tuple(blocks), tuple(slots))
    return Copy(id_, tuple(rng.sample(range(shape.blocks), pairs)), tuple(rng.sample(range(shape.slots), pairs)))


class MovingContract(ReportingContract):
    """Holds for every copy engine that moves bytes."""

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.fragments[:3]}x{shape.blocks}")
    def test_every_byte_arrives_and_no_other_changes(self, shape: Shape, seed: int) -> None:
        rng = random.Random(seed)
        with self.rig(shape) as rig:
            _fill(rig, rng)
            blocks, slots, padding = _blocks(rig), _slots(rig), rig.read_padding()
            for id_ in range(6):
                copy = _random_copy(id_, shape, rng)
                direction = rng.choice((STORE, LOAD))
                assert rig.run(direction, copy) == Finished(done=(id_,))
                for block, slot in zip(copy.blocks, copy.slots, strict=True):
                    if direction is STORE:
                        slots[slot] = blocks[block]
                    else:
                        blocks[block] = slots[slot]
                assert _blocks(rig) == blocks
                assert _slots(rig) == slots
                assert rig.read_padding() == padding

    def test_a_block_that_was_stored_can_be_loaded_into_another_block(self) -> None:
        with self.rig() as rig:
            _fill(rig, random.Random(0))
            first, second = rig.read_block(1), rig.read_block(2)
            assert rig.run(STORE, Copy(1, (1, 2), (8, 0))).done == (1,)
            assert rig.run(LOAD, Copy(2, (11, 3), (8, 0))).done == (2,)
            assert (rig.read_block(11), rig.read_block(3)) == (first, second)

    def test_a_copy_waits_for_its_fence(self) -> None:
        with self.rig() as rig:
            gate = rig.gate()
            assert rig.engine.submit(STORE, Copy(1, (0,), (0,)), gate.after)
            assert not rig.engine.wait([1], 0.0)
            assert rig.engine.poll() == Finished()
            late = random.Random(1).randbytes(rig.shape.block_bytes)
            rig.write_block(0, late)
            gate.open()
            assert rig.finish(1).done == (1,)
            assert rig.read_slot(0) == late

    def test_a_wait_ends_at_its_deadline(self) -> None:
        with self.rig() as rig:
            gate = rig.gate()
            rig.engine.submit(STORE, Copy(1, (0,), (0,)), gate.after)
            assert not rig.engine.wait([1], 0.01)
            gate.open()
            assert rig.finish(1).done == (1,)

    def test_f15_a_copy_that_raises_is_a_failed_transfer_and_later_copies_work(self) -> None:
        def broken() -> None:
            raise RuntimeError("the bus is on fire")

        with self.rig() as rig:
            _fill(rig, random.Random(0))
            slots = _slots(rig)
            for id_ in range(5):
                done, failed, _ = rig.run(STORE, Copy(id_, (1,), (2,)), broken)
                assert not done
                assert [id_] == [id_ for id_, _ in failed]
                assert "the bus is on fire" in failed[0][1]
            assert _slots(rig) == slots
            assert rig.run(STORE, Copy(9, (1,), (2,))) == Finished(done=(9,))
            assert rig.read_slot(2) == rig.read_block(1)

    @pytest.mark.parametrize("direction", Direction)
    @pytest.mark.parametrize(
        ("blocks", "slots"),
        [
            pytest.param((0, 12), (0, 1), id="block-too-large"),
            pytest.param((0, -1), (0, 1), id="block-negative"),
            pytest.param((0, 1), (0, 9), id="slot-too-large"),
            pytest.param((0, 1), (0, -9), id="slot-negative"),
            pytest.param((0, 1 << 70), (0, 1), id="block-beyond-any-integer"),
            pytest.param((0, 1), (0,), id="fewer-slots-than-blocks"),
        ],
    )
    def test_blocks_or_slots_that_do_not_exist_fail_the_transfer_and_no_byte_changes(
        self, direction: Direction, blocks: tuple[int, ...], slots: tuple[int, ...]
    ) -> None:
        with self.rig() as rig:
            _fill(rig, random.Random(0))
            before = _blocks(rig), _slots(rig)
            done, failed, _ = rig.run(direction, Copy(4, blocks, slots))
            assert (done, [id_ for id_, why in failed if why]) == ((), [4])
            assert (_blocks(rig), _slots(rig)) == before
            assert rig.run(direction, Copy(5, (0,), (0,))) == Finished(done=(5,))

    def test_transfers_that_are_held_back_count_towards_the_bound(self) -> None:
        with self.rig(max_transfers=2) as rig:
            gate = rig.gate()
            assert rig.engine.submit(LOAD, Copy(1, (0,), (0,)), gate.after)
            assert rig.engine.submit(LOAD, Copy(2, (1,), (1,)), gate.after)
            assert not rig.engine.submit(LOAD, Copy(3, (2,), (2,)))
            gate.open()
            assert sorted(rig.finish(1, 2).done) == [1, 2]

    def test_close_fails_what_had_not_begun_and_reports_each_transfer_once(self) -> None:
        with self.rig() as rig:
            gate = rig.gate()
            for id_ in range(10):
                assert rig.engine.submit(STORE, Copy(id_, (0,), (id_ % 9,)), gate.after)
            assert gate.reached.wait(PATIENCE_S)
            assert not rig.engine.close(0.0), "a copy still runs"
            done, failed, _ = rig.engine.poll()
            assert not done
            assert failed, "those that had not begun"
            gate.open()
            assert rig.engine.close(PATIENCE_S)
            last = rig.engine.poll()
            assert last.done, "the one that ran came to its end"
            assert not last.failed
            assert sorted([*last.done, *(id_ for id_, _ in failed)]) == list(range(10))
            assert rig.engine.poll() == Finished()

    def test_traffic_counts_the_bytes_of_copies_that_succeeded(self) -> None:
        with self.rig() as rig:
            rig.run(STORE, Copy(1, (0, 1), (0, 1)))
            rig.run(STORE, Copy(2, (2,), (2,)))
            rig.run(STORE, Copy(3, (-1,), (0,)))
            store = rig.engine.traffic(STORE)
            assert (store.transfers, store.bytes) == (2, 3 * rig.shape.block_bytes)
            assert store.busy_s > 0
            assert store.seconds.count == store.transfers
            assert rig.engine.traffic(LOAD) == Traffic()

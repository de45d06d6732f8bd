"""An arena's pages come from the node next to the GPU, or one line says why not."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import pytest

from kvtide.copy import HostArena, libc, numa, shared_memory
from kvtide.copy.cuda.pinning import Pinner
from kvtide.copy.cuda.torch_gpu import TorchGpu
from tests.contracts.copy_contract import PATIENCE_S
from tests.copy.cuda.fake_gpu import FakeGpu

MIB = 1 << 20


class PlacedGpu(FakeGpu):
    """Is next to a node, and keeps what is done to host memory, in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, node: int | None = 1, nodes: int = 2) -> None:
        super().__init__()
        self.node = node
        self.done: list[str] = []
        self.bound: list[tuple[int, int, int]] = []
        self.pages_from = {0: 1}
        """From which node pages come, by the piece they are in."""
        self.refuses: OSError | None = None
        self.address = 0
        monkeypatch.setattr(numa, "nodes", lambda: frozenset(range(nodes)))
        monkeypatch.setattr(numa, "prefer_node", self.prefer)
        monkeypatch.setattr(numa, "node_of", lambda at: self.pages_from.get((at - self.address) // (2 * MIB), 1))
        monkeypatch.setattr(libc, "madvise", lambda *_: self.done.append("make"))

    def local_node(self) -> int | None:
        return self.node

    def prefer(self, address: int, nbytes: int, node: int) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.done.append("bind")
        self.bound.append((address, nbytes, node))

    def pin(self, address: int, nbytes: int) -> None:
        self.done.append("pin")
        super().pin(address, nbytes)

    def pin_all(self) -> HostArena:
        """Pin an arena of three pieces."""
        arena = HostArena(slots=6, slot_bytes=MIB)
        self.address = int(arena.memory.ctypes.data)
        pinner = Pinner(self, arena, piece_bytes=2 * MIB)
        assert pinner.wait(PATIENCE_S)
        assert (pinner.usable_slots, pinner.problem) == (6, None)
        assert pinner.close(PATIENCE_S)
        return arena


def torch_gpu_at(about: SimpleNamespace) -> TorchGpu:
    """Return a GPU of which torch says only this, where there is no torch."""
    gpu = TorchGpu.__new__(TorchGpu)
    gpu._device = None
    gpu._torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _: about))  # type: ignore[assignment]  # as much of torch as is asked
    return gpu


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_whole_arena_is_bound_before_its_first_page_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = PlacedGpu(monkeypatch)
    arena = gpu.pin_all()
    assert gpu.bound == [(arena.memory.ctypes.data, 6 * MIB, 1)]
    assert gpu.done == ["bind", "make", "pin", "make", "pin", "make", "pin"]
    assert not warnings(caplog)


def test_memory_that_others_have_too_is_not_bound_by_each_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = PlacedGpu(monkeypatch)
    offer = shared_memory.make(2 * MIB)
    pinner = Pinner(gpu, HostArena(slots=2, slot_bytes=MIB, file=offer.descriptor), piece_bytes=2 * MIB)
    assert pinner.wait(PATIENCE_S)
    assert pinner.usable_slots == 2
    assert not gpu.bound
    assert not warnings(caplog)
    assert pinner.close(PATIENCE_S)
    os.close(offer.descriptor)


def test_what_the_system_forbids_is_one_line_and_the_arena_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = PlacedGpu(monkeypatch)
    gpu.refuses = PermissionError(1, "Operation not permitted")
    gpu.pages_from = {1: 0}
    gpu.pin_all()
    (line,) = warnings(caplog)
    assert line.startswith("host memory is not bound to NUMA node 1, next to the GPU: PermissionError")
    assert "CAP_SYS_NICE" in line


def test_a_gpu_whose_node_is_not_known_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = PlacedGpu(monkeypatch, node=None)
    gpu.pin_all()
    assert not gpu.bound
    (line,) = warnings(caplog)
    assert "does not say which is next to the GPU" in line


@pytest.mark.parametrize("nodes", [0, 1])
def test_a_machine_of_one_node_has_nothing_to_bind_and_nothing_to_say(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nodes: int
) -> None:
    gpu = PlacedGpu(monkeypatch, node=None, nodes=nodes)
    gpu.pin_all()
    assert not gpu.bound
    assert not warnings(caplog)


def test_pages_that_came_from_elsewhere_are_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = PlacedGpu(monkeypatch)
    gpu.pages_from = {1: 0, 2: 0}
    gpu.pin_all()
    assert warnings(caplog) == ["about 4 MiB of host memory are not on NUMA node 1, next to the GPU, which had no more"]


def test_not_to_know_where_pages_came_from_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbid(address: int) -> int:
        raise PermissionError(1, f"no answer about {address}")

    gpu = PlacedGpu(monkeypatch)
    monkeypatch.setattr(numa, "node_of", forbid)
    gpu.pin_all()
    assert not warnings(caplog)


def test_a_gpu_is_found_by_its_address_on_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "node_of_device", {"0000:3b:0a.0": 3}.get)
    monkeypatch.setattr(numa, "cpus_of_device", {"0000:3b:0a.0": frozenset({7})}.get)
    gpu = torch_gpu_at(SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0xA))
    assert (gpu.local_node(), gpu.local_cpus()) == (3, frozenset({7}))


def test_an_old_torch_does_not_tell_where_the_gpu_is() -> None:
    gpu = torch_gpu_at(SimpleNamespace())
    assert (gpu.local_node(), gpu.local_cpus()) == (None, frozenset())

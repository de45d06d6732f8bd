"""Compute keeps writing and reading blocks while transfers run. Without fences it goes wrong, with them never."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from kvtide.copy.cuda import Route
from kvtide.core.messages import Copy
from tests.contracts.copy_contract import LOAD, STORE, Shape
from tests.gpu.rig import CudaRig

torch: Any = importlib.import_module("torch")

SHAPE = Shape(blocks=192, slots=192, fragments=(4096,) * 16)
ROUNDS = 30
SPIN_CYCLES = 30_000_000
"""About 15 ms: far longer than an unfenced copy needs to overtake, launches and all."""
PART = 64
STORED, LOADED, BUSY = slice(0, PART), slice(PART, 2 * PART), slice(2 * PART, 3 * PART)


def _torture(*, store_fenced: bool, load_fenced: bool, route: Route) -> tuple[int, int]:
    """Return in how many rounds stores were wrong, and compute read what a load had overwritten."""
    rig = CudaRig(SHAPE, route=route, staging_bytes=1 << 20)
    compute = torch.cuda.Stream()
    wrong_stores = wrong_reads = 0
    ids = tuple(range(3 * PART))
    for value in range(1, ROUNDS + 1):
        rig.arena.memory[LOADED] = 100 + value
        with torch.cuda.stream(compute):
            for tensor in rig.tensors:
                tensor[LOADED].fill_(value)
            compute.synchronize()
            torch.cuda._sleep(SPIN_CYCLES)
            for tensor in rig.tensors:
                tensor[STORED].fill_(value)
            read = torch.stack([tensor[LOADED].max() for tensor in rig.tensors])
            event = torch.cuda.Event()
            event.record()
            for tensor in rig.tensors:  # compute goes on elsewhere
                tensor[BUSY].add_(1)
        stores = Copy(2 * value, ids[STORED], ids[STORED])
        loads = Copy(2 * value + 1, ids[LOADED], ids[LOADED])
        assert rig.engine.submit(STORE, stores, event.wait if store_fenced else None)
        assert rig.engine.submit(LOAD, loads, event.wait if load_fenced else None)
        done, failed, _ = rig.finish(2 * value, 2 * value + 1)
        assert (sorted(done), failed) == ([2 * value, 2 * value + 1], ())
        compute.synchronize()
        wrong_stores += bool((rig.arena.memory[STORED] != value).any())
        wrong_reads += bool((read != value).any())
        assert all(bool((tensor[LOADED] == 100 + value).all()) for tensor in rig.tensors) or not load_fenced
    rig.release()
    return wrong_stores, wrong_reads


@pytest.mark.parametrize("route", Route)
def test_with_fences_nothing_is_ever_wrong(route: Route) -> None:
    assert _torture(store_fenced=True, load_fenced=True, route=route) == (0, 0)


@pytest.mark.parametrize("route", Route)
def test_f6_a_store_without_its_fence_reads_before_compute_wrote(route: Route) -> None:
    wrong_stores, wrong_reads = _torture(store_fenced=False, load_fenced=True, route=route)
    assert wrong_stores > 0
    assert wrong_reads == 0


@pytest.mark.parametrize("route", Route)
def test_f7_a_load_without_its_fence_overwrites_what_compute_still_reads(route: Route) -> None:
    wrong_stores, wrong_reads = _torture(store_fenced=True, load_fenced=False, route=route)
    assert wrong_reads > 0
    assert wrong_stores == 0


@pytest.mark.parametrize(("route", "ordered"), [(Route.STAGED, True), (Route.STAGED, False), (Route.DIRECT, True)])
def test_compute_that_hears_of_a_load_before_its_end_reads_what_it_brings(route: Route, ordered: bool) -> None:
    """256 MiB in chunks of 16: the load is certain when about a millisecond of it is left.

    Not so with the other route, where issuing takes as long as copying, and nothing is left when it is certain.
    """
    rig = CudaRig(Shape(blocks=1024, slots=1024, fragments=(16_384,) * 16), route=route, staging_bytes=16 << 20)
    ids = tuple(range(1024))
    wrong = 0
    for value in range(1, ROUNDS + 1):
        rig.arena.memory[:] = value
        assert rig.engine.submit(LOAD, Copy(value, ids, ids))
        assert rig.engine.wait_certain([value], 30)
        for fence in rig.engine.certain().values() if ordered else ():
            fence()
        read = torch.stack([tensor[-1].min() for tensor in rig.tensors])
        wrong += bool((read != value).any())
        assert rig.finish(value).done == (value,)
    rig.release()
    assert (wrong == 0) == ordered


def test_submitting_behind_unfinished_compute_does_not_block_the_host() -> None:
    rig = CudaRig(SHAPE, route=Route.STAGED)
    torch.cuda._sleep(200_000_000)  # about 0.1 s
    event = torch.cuda.Event()
    event.record()
    copies = [Copy(i, (i,), (i,)) for i in range(40)]
    for copy in copies:
        assert rig.engine.submit(STORE if copy.id % 2 else LOAD, copy, event.wait)
    assert not event.query(), "all were submitted while compute still ran"
    assert not rig.engine.poll().done
    assert sorted(rig.finish(*range(40)).done) == list(range(40))
    rig.release()

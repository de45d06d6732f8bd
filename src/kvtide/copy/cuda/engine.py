"""The copy engine for NVIDIA GPUs: one lane and one thread for each direction, beside compute."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kvtide.copy.arena import HostArena
from kvtide.copy.base import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.copy.cuda.ends import Ends
from kvtide.copy.cuda.geometry import CudaCache
from kvtide.copy.cuda.gpu import Gpu
from kvtide.copy.cuda.jobs import Job, Jobs
from kvtide.copy.cuda.kit import CopyKit
from kvtide.copy.cuda.lane import Lane
from kvtide.copy.cuda.measure import Route
from kvtide.copy.cuda.packed_sizes import Sizes
from kvtide.copy.cuda.pinning import Pinner
from kvtide.copy.packing import whole_tiles_bytes
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.slot_places import SlotPlaces
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError, describe
from kvtide.options import parse_count
from kvtide.units import size_text

_LOG = logging.getLogger(__name__)


class CudaCopyEngine(CopyEngine):
    """Copies between GPU and pinned host memory, both directions at once. At most `max_transfers` are in flight.

    A fence (`after`) is called in a thread of the engine, with the stream current on which device blocks are touched.
    So compute is passed as the `wait` of a recorded event, and no thread blocks:

        event = torch.cuda.Event()
        event.record()  # on the compute stream, behind the step's kernels
        engine.submit(direction, copy, after=event.wait)

    Blocks go through `staging_buffers` buffers of `staging_bytes` for each direction, on the GPU, unless their
    fragments are large enough without; `route` overrides what a short measurement says. The arena is pinned in the
    background; `usable_slots` says how far that has come, and a transfer that names a slot beyond it fails. As long as
    the serving engine is `starting`, little of it is pinned.

    A `kit` that was made before, for the same device blocks, is used instead of buffers of its own, and stays when the
    engine is closed; what the engine would be told of these is its business.

    With `unpacked`, blocks are bfloat16 and packed: slots have the size of packed blocks, and what does not pack goes
    there. `trial` decides whether blocks are packed after all.
    """

    def __init__(
        self,
        device: CudaCache,
        arena: HostArena,
        *,
        staging_bytes: int = 64 << 20,
        staging_buffers: int = 2,
        piece_bytes: int = 64 << 20,
        max_transfers: int = 1024,
        route: Route | None = None,
        gpu: Gpu | None = None,
        unpacked: UnpackedRows | None = None,
        trial: PackingTrial | None = None,
        kit: CopyKit | None = None,
        starting: bool = False,
    ) -> None:
        parse_count("max_transfers", max_transfers)
        _check_slots(device, arena, packed=unpacked is not None)
        if kit is None:
            kit = CopyKit(
                device,
                staging_bytes=staging_bytes,
                staging_buffers=staging_buffers,
                route=route,
                gpu=gpu,
                packed=unpacked is not None,
                pairs_max=max(device.blocks, arena.slots),
            )
        else:
            kit.device_memory_goes()  # it may have gone while nobody had the kit
        gpu = kit.gpu
        self._kit: CopyKit | None = kit
        self._trial = trial
        self._places = SlotPlaces(arena, unpacked, trial) if unpacked is not None else None
        # Before it is decided, each block may need one; and in shared memory others may have put a block there.
        self._needs_rows = trial is not None or (unpacked is not None and unpacked.arena.shared)
        sizes = Sizes(device.block_bytes, arena.slot_bytes, unpacked, trial)
        self.rates, self.route = kit.rates, kit.route
        """GB/s of one large copy in each direction, measured when the kit was made, and what follows from that."""
        block_s = arena.slot_bytes / (self.rates.load * 1e9) if self.rates.load else 0.0
        self._jobs = Jobs(sizes, max_transfers, Ends(block_s))
        self.device_bytes = kit.device_bytes
        """GPU memory that the engine uses."""
        how: dict[str, Any] = {"piece_bytes": piece_bytes, "unpacked": unpacked, "trial": trial}
        self._lanes = {way: Lane(gpu, way, device, arena, lane, **how) for way, lane in kit.lanes.items()}
        self.pinning = Pinner(gpu, arena, piece_bytes=piece_bytes, starting=starting)
        """How far pinning has come: `pinned_bytes`, `problem`, `wait`."""
        self.row_pinning = None if unpacked is None else _pin_rows(gpu, unpacked, arena, piece_bytes)
        """The same for the place of blocks that do not pack."""
        self._threads = [
            threading.Thread(
                target=self._run, args=(direction, lane, gpu), name=f"kvtide-{direction.value}", daemon=False
            )
            for direction, lane in self._lanes.items()
        ]
        self._start_threads()
        self.start_line = self._describe(device)
        """What was chosen, and why."""
        _LOG.info("%s", self.start_line)

    @property
    def usable_slots(self) -> int:
        """Slots, from slot 0 on, that are pinned so far: only those may be named by transfers."""
        if self._needs_rows and self.row_pinning is not None and not self.row_pinning.is_complete:
            return 0
        return self.pinning.usable_slots if self._trial is None else self._trial.slots(self.pinning.pinned_bytes)

    def slots_ready(self) -> int | None:
        """Return how far pinning has come. See `CopyEngine.slots_ready`."""
        return self.usable_slots

    @property
    def places(self) -> SlotPlaces | None:
        """Where the blocks of slots are. See `CopyEngine.places`."""
        return self._places

    @property
    def lost(self) -> str | None:
        """Why the GPU does not answer any more, or None. From then on every transfer is refused."""
        return self._jobs.lost

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        """Queue a transfer. See `CopyEngine.submit`."""
        return self._jobs.submit(direction, copy, after)

    def poll(self) -> Finished:
        """Return the transfers that ended since the last call. See `CopyEngine.poll`."""
        return self._jobs.poll()

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until none of the transfers is under way. See `CopyEngine.wait`."""
        return self._jobs.wait(ids, timeout_s)

    def certain(self, within_s: float = math.inf) -> Mapping[int, Fence]:
        """Return the loads whose last copy was issued. See `CopyEngine.certain`."""
        return self._jobs.certain(within_s)

    def wait_certain(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until the last copy of each transfer was issued. See `CopyEngine.wait_certain`."""
        return self._jobs.wait_certain(ids, timeout_s)

    def share(self, *, compute: bool) -> None:
        """Let small copies of others in between. See `CopyEngine.share`."""
        for lane in self._lanes.values():
            lane.gaps[0] = compute

    def started(self) -> None:
        """Pin the rest. See `CopyEngine.started`."""
        for pinning in self._pinnings():
            pinning.started()

    def device_memory_goes(self) -> None:
        """Remember to fetch again what has to be in GPU memory. See `CopyEngine.device_memory_goes`."""
        if self._kit is not None:
            self._kit.device_memory_goes()

    def traffic(self, direction: Direction) -> Traffic:
        """Return what was moved in one direction so far."""
        return self._jobs.traffic(direction)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop the threads after what they are at, and unpin. See `CopyEngine.close`."""
        deadline_s = time.monotonic() + timeout_s
        for pinning in self._pinnings():
            pinning.stop()
        self._jobs.close()
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        if not self._jobs.wait(None, deadline_s - time.monotonic()):
            return False
        self._lanes.clear()  # now that nothing moves in its buffers, the kit is free for others, or goes
        self._kit = None
        return all(pinning.close(max(0.0, deadline_s - time.monotonic())) for pinning in self._pinnings())

    def _pinnings(self) -> list[Pinner]:
        return [self.pinning] if self.row_pinning is None else [self.pinning, self.row_pinning]

    def _start_threads(self) -> None:
        started: list[threading.Thread] = []
        try:
            for thread in self._threads:
                thread.start()
                started.append(thread)
        except RuntimeError as error:
            self._threads = started
            self.close()
            raise ConfigError("threads", len(self._lanes), f"as many as the system can start ({error})") from error

    def _describe(self, device: CudaCache) -> str:
        fragments = f"{len(device.regions)} fragments of {device.fragment_bytes_min} to {device.fragment_bytes_max} B"
        rates = self.rates
        return (
            f"CUDA copies: {self.route.value}, blocks of {fragments}, {size_text(self.device_bytes)} of GPU memory; "
            f"one large copy reaches {rates.store:.1f} GB/s out and {rates.load:.1f} in, "
            f"one fragment at a time {rates.store_fragments:.1f} and {rates.load_fragments:.1f} (0: not measured)"
        )

    def _run(self, direction: Direction, lane: Lane, gpu: Gpu) -> None:
        """Issue transfers until the engine is closed. No transfer, whatever it raises, ends the thread (F15)."""
        for prepare in (gpu.prove, lane.enter):
            with contextlib.suppress(Exception):  # what fails here fails again with the first transfer, and is reported
                prepare()
        while (job := self._jobs.next(direction)) is not None:
            self._issue(lane, job)

    def _issue(self, lane: Lane, job: Job) -> None:
        try:
            if job.rest is None:
                issued = lane.issue(job.copy, job.after, self.usable_slots, job.issued)
            else:
                issued = lane.issue_rows(job.rest.blocks, job.rest.rows, job.issued)
        except BaseException as error:  # even SystemExit: there is nobody behind this frame to tell
            why = describe(error)
            self._settle(lane)
            self._jobs.failed(job, why)
        else:
            self._jobs.issued(job, issued)

    def _settle(self, lane: Lane) -> None:
        """Wait until nothing of a failed transfer moves any more. A device that cannot say so is lost."""
        try:
            lane.settle()
        except BaseException as error:
            self._jobs.lose(describe(error))


def _pin_rows(gpu: Gpu, unpacked: UnpackedRows, arena: HostArena, piece_bytes: int) -> Pinner:
    """Pin all rows at once, for no slot can be used before (see `usable_slots`): a hundredth of the arena."""
    unpacked.arena.share = arena.share
    pinner = Pinner(gpu, unpacked.arena, piece_bytes=piece_bytes, after=arena if arena.shared else None)
    unpacked.usable_rows = lambda: pinner.usable_slots
    return pinner


def _check_slots(device: CudaCache, arena: HostArena, *, packed: bool) -> None:
    sizes = [region.fragment_bytes for region in device.regions]
    expected = whole_tiles_bytes(sizes) if packed else device.block_bytes
    if arena.slot_bytes != expected:
        what = "packed block" if packed else "device block"
        raise ConfigError("slot_bytes", arena.slot_bytes, f"the bytes of one {what}, {expected}")

"""What a lane has on the GPU, whatever host memory it copies to or from."""

from __future__ import annotations

from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import CudaCache, tiling
from kvtide.copy.cuda.gpu import Gap, Gpu, Mover, PackedMover
from kvtide.copy.cuda.issuing import NO_GAPS
from kvtide.copy.cuda.lane_memory import PAIRS_MAX, Columns, LaneMemory
from kvtide.copy.cuda.measure import Route
from kvtide.copy.cuda.packed_tiles import WORD_BYTES, packed_tiles

AHEAD = 8
"""Chunks that the GPU may be behind. So much is left at most of an issued transfer: 10 ms, with the usual buffers."""
TURN_BYTES = 16 << 20
"""After so many bytes others get their turn."""


class LaneKit:
    """Streams, events, memory and kernels of one direction. One lane at a time has them."""

    def __init__(
        self,
        gpu: Gpu,
        direction: Direction,
        cache: CudaCache,
        *,
        route: Route,
        staging_bytes: int,
        staging_buffers: int,
        pairs_max: int = PAIRS_MAX,
        packed: bool = False,
    ) -> None:
        self.staged = route is Route.STAGED
        self.buffer_bytes = max(cache.block_bytes, min(PAIRS_MAX * cache.block_bytes, staging_bytes))
        self.kernels, self.copies = gpu.stream(), gpu.stream()
        self.gap = Gap(TURN_BYTES, gpu.stream(), gpu.event(), gpu.event())
        """Lets copies of other streams in.

        A copy engine stays with a stream as long as that has copies to do, and the few bytes that a serving engine
        sends with each step (token ids, block tables, and back what was sampled) waited until all of ours were over:
        20 small copies took 460 ms instead of 0.4. So our stream waits for another one, for microseconds. Then they
        take 5 ms, and ours 3 to 6% longer.
        """
        self.done = [gpu.event() for _ in range(AHEAD)]
        """Reached when a chunk is done; each is used for every eighth."""
        self.between = gpu.event()
        tiles = tiling(cache)
        tables: list[Columns] = [(tiles.table, tiles.element_bytes)]
        if packed:
            tables.append((packed_tiles(cache), WORD_BYTES))
        self.memory = LaneMemory(
            gpu,
            tables,
            self.copies,
            buffers=staging_buffers if self.staged else 0,
            buffer_bytes=self.buffer_bytes,
            pairs_max=pairs_max,
        )
        self.move: Mover = gpu.mover(direction, tiles, self.memory.tables[0].device)
        self.move_packed: PackedMover | None = None
        if packed:
            table = self.memory.tables[1]
            self.move_packed = gpu.packed_mover(direction, len(table.on_host[0]), table.device)

    def compile(self, gpu: Gpu) -> None:
        """Get the calling thread ready, and the kernels compiled, by launches that have nothing to do."""
        gpu.enter(self.kernels)
        commands = gpu.commands()
        for index in self.memory.indexes[:1]:
            commands.fetch(self.kernels, index.device, index.host[:0])
            nothing = {"first": 0, "pairs": 0, "rows_at": index.device.address, "row_bytes": self.buffer_bytes}
            for scattered in (False, True):
                self.move(commands, self.kernels, index.device, **nothing, scattered=scattered)
                if self.move_packed is not None:
                    of = index.device
                    self.move_packed(commands, self.kernels, of, flags=index.flags, **nothing, scattered=scattered)
        commands.run(NO_GAPS)

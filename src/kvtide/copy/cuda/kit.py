"""What copying takes on a GPU, whatever host memory is copied to or from.

It is made once, and kept while host memory comes and goes: memory that is asked for while an engine serves may not be
there, a measurement beside compute says little, and torch has only 32 streams, which it then hands out again: copies
would end up on a stream of the engine.
"""

from __future__ import annotations

import contextlib
import threading

from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import CudaCache
from kvtide.copy.cuda.gpu import Gpu
from kvtide.copy.cuda.lane_kit import LaneKit
from kvtide.copy.cuda.lane_memory import PAIRS_MAX
from kvtide.copy.cuda.measure import Rates, Route, measure
from kvtide.copy.cuda.packed_tiles import packable
from kvtide.copy.cuda.torch_gpu import TorchGpu
from kvtide.errors import ConfigError, describe
from kvtide.options import parse_count

_STAGING_BYTES_MAX = 1 << 30


class CopyKit:
    """For both directions, and what was measured. At most one copy engine at a time has it.

    See `CudaCopyEngine` for the options. `packed`: blocks are bfloat16 and packed. `pairs_max`: transfers have no more
    pairs of block and slot, where that is known.
    """

    def __init__(
        self,
        cache: CudaCache,
        *,
        staging_bytes: int = 64 << 20,
        staging_buffers: int = 2,
        route: Route | None = None,
        gpu: Gpu | None = None,
        packed: bool = False,
        pairs_max: int = PAIRS_MAX,
    ) -> None:
        _check(cache, staging_bytes, staging_buffers, packed=packed)
        self.gpu = gpu or TorchGpu(cache.device)
        try:
            with self.gpu.active():
                self.rates = measure(self.gpu, cache) if route is None else Rates()
                """GB/s of one large copy in each direction."""
                self.route = Route.STAGED if packed else route or self.rates.route
                self.lanes = {
                    direction: LaneKit(
                        self.gpu,
                        direction,
                        cache,
                        route=self.route,
                        staging_bytes=staging_bytes,
                        staging_buffers=staging_buffers,
                        pairs_max=pairs_max,
                        packed=packed,
                    )
                    for direction in Direction
                }
        except Exception as error:
            expected = f"GPU memory that is left for {staging_buffers} such buffers each way ({describe(error)})"
            raise ConfigError("staging_bytes", staging_bytes, expected) from error
        self.device_bytes = sum(lane.memory.nbytes for lane in self.lanes.values())
        """GPU memory that it takes: staging buffers, and a little for indices."""

    def warm_up(self) -> threading.Thread:
        """Have the GPU proved and the kernels compiled, in the background: the first copies need not wait for that."""
        thread = threading.Thread(target=self._warm_up, name="kvtide-warm-up", daemon=False)
        thread.start()
        return thread

    def _warm_up(self) -> None:
        with contextlib.suppress(Exception):  # what fails here fails again with the first transfer, and is reported
            self.gpu.prove()
            for lane in self.lanes.values():
                lane.compile(self.gpu)

    def device_memory_goes(self) -> None:
        """Remember to fetch again what has to be in GPU memory."""
        for lane in self.lanes.values():
            lane.memory.table_lost = True


def _check(cache: CudaCache, staging_bytes: int, staging_buffers: int, *, packed: bool) -> None:
    parse_count("staging_bytes", staging_bytes)
    parse_count("staging_buffers", staging_buffers, minimum=2)
    if staging_bytes > _STAGING_BYTES_MAX:
        raise ConfigError("staging_bytes", staging_bytes, f"at most {_STAGING_BYTES_MAX}")
    if packed and not packable(cache):
        raise ConfigError("packing", "on", "a KV cache whose blocks begin at multiples of 16 bytes")

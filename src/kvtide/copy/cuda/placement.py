"""Takes host memory from the NUMA node next to the GPU: copies from another one are slower, and disturb its CPUs."""

from __future__ import annotations

import contextlib
import logging
import os

from kvtide.copy import numa
from kvtide.copy.cuda.gpu import Gpu
from kvtide.errors import describe
from kvtide.units import size_text

_LOG = logging.getLogger(__name__)


class Placement:
    """Where the pages of an arena come from. Made before the pages, in the thread that makes them.

    Memory in the wrong place works too, so nothing here fails: a line in the log says what could not be done.
    """

    def __init__(self, gpu: Gpu, address: int, nbytes: int, *, bind: bool = True) -> None:
        """`bind`: false for memory that others have too, who may be next to another node."""
        self.node: int | None = None
        """What the pages are bound to."""
        self.far_bytes = 0
        """What came from elsewhere all the same, because that node was full."""
        cpus = gpu.local_cpus()
        if cpus:  # clearing pages is faster from near, too
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cpus)
        if bind and len(numa.nodes()) > 1:
            self._bind(gpu.local_node(), address, nbytes)

    def _bind(self, node: int | None, address: int, nbytes: int) -> None:
        if node is None:
            _LOG.warning("host memory is not bound to a NUMA node: the system does not say which is next to the GPU")
            return
        try:
            numa.prefer_node(address, nbytes, node)
            self.node = node
        except OSError as error:
            text = "host memory is not bound to NUMA node %d, next to the GPU: %s (containers may need CAP_SYS_NICE)"
            _LOG.warning(text, node, describe(error))

    def made(self, address: int, nbytes: int) -> None:
        """Look where a piece came from, by its first page."""
        with contextlib.suppress(OSError):
            if self.node is not None and numa.node_of(address) != self.node:
                self.far_bytes += nbytes

    def tell(self) -> None:
        """Say what is not where it should be."""
        if self.far_bytes:
            text = "about %s of host memory are not on NUMA node %d, next to the GPU, which had no more"
            _LOG.warning(text, size_text(self.far_bytes), self.node)

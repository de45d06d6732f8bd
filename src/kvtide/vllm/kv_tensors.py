"""Where vLLM keeps the bytes of a block, in both of its layouts, and what copies them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kvtide.copy import CopyEngine, DeviceCache, Fence, HostArena, Region, ThreadedCopyEngine
from kvtide.copy.packing import whole_tiles_bytes
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.shared_arena import SharedArena
from kvtide.copy.unpacked import UnpackedRows, rows_for
from kvtide.errors import ConfigError
from kvtide.vllm.log import logger
from kvtide.vllm.options import Copying
from kvtide.vllm.sharing import ALONE, Sharing


@dataclass(frozen=True, slots=True, eq=False)
class Stripe:
    """One fragment of every block: that of block `b` is at byte `offset + b * block_stride` of `memory`."""

    memory: torch.Tensor
    """A flat tensor of bytes: a whole allocation."""
    offset: int
    block_stride: int
    """Also the length of the fragment: vLLM leaves no gaps."""


def stripes_of(kv_caches: Mapping[str, Any], kv_cache_config: Any) -> list[Stripe]:
    """Return where blocks are, each piece of memory once, though layers and groups share them."""
    tensors = {name: value[0] if isinstance(value, list | tuple) else value for name, value in kv_caches.items()}
    if hasattr(kv_cache_config.kv_cache_tensors[0], "layers"):
        found = _by_placement(tensors, kv_cache_config)
    else:
        found = _by_storage(tensors, kv_cache_config.num_blocks)
    unique = {(stripe.memory.data_ptr(), stripe.offset): stripe for stripe in found}
    return list(unique.values())


def places_of(stripes: list[Stripe]) -> list[tuple[int, int, int]]:
    """Return where stripes are, to be compared."""
    return [(stripe.memory.data_ptr(), stripe.offset, stripe.block_stride) for stripe in stripes]


def _by_placement(tensors: Mapping[str, torch.Tensor], kv_cache_config: Any) -> Iterator[Stripe]:
    """Since 0.29: one allocation, and `KVCacheTensor` says where each layer's pages are in it."""
    blocks = kv_cache_config.num_blocks
    for placed in kv_cache_config.kv_cache_tensors:
        name = next((name for name in placed.layers if name in tensors), None)
        if name is None or getattr(placed, "host_resident", False):
            continue
        memory = _bytes_of(tensors[name])
        region_bytes = blocks * placed.block_stride
        if placed.layer_stride >= region_bytes:  # each layer is a region, or one region for each head group
            count = len(placed.layers) * placed.layer_stride // region_bytes
            offsets = [placed.offset + index * region_bytes for index in range(count)]
        else:  # all layers of a block lie side by side
            offsets = [0]
        for offset in offsets:
            _check_inside(memory, offset + region_bytes, name)
            yield Stripe(memory, offset, placed.block_stride)


def _by_storage(tensors: Mapping[str, torch.Tensor], blocks: int) -> Iterator[Stripe]:
    """Up to 0.28: an allocation for each layer, whose shape depends on the attention backend.

    A dimension whose stride is longer than a block's page lies outside the blocks: keys and values of FlashAttention.
    """
    for name, tensor in tensors.items():
        memory = _bytes_of(tensor)
        page_bytes = memory.numel() // blocks
        outer = [dim for dim in range(tensor.ndim) if tensor.stride(dim) * tensor.element_size() > page_bytes]
        pieces = tensor.shape[outer[0]] if outer else 1
        piece_bytes = tensor.stride(outer[0]) * tensor.element_size() if outer else page_bytes * blocks
        _check_inside(memory, pieces * piece_bytes, name)
        for index in range(pieces):
            yield Stripe(memory, index * piece_bytes, piece_bytes // blocks)


def layout_of(kv_caches: Mapping[str, Any], stripes: list[Stripe], blocks: int) -> str:
    """Say where the numbers of each layer are in a slot, which holds the stripes of a block one after the other.

    The same for every number of blocks: two servers whose texts are the same can read each other's slots.
    """
    layers: dict[str, list[str]] = {}
    for name, value in kv_caches.items():
        for tensor in value if isinstance(value, list | tuple) else [value]:
            shape, place = _place(tensor, stripes, blocks)
            layers.setdefault(shape, []).append(f"{name} {place}")
    sizes = ",".join(str(stripe.block_stride) for stripe in stripes)
    return "; ".join([*(f"{shape}: {', '.join(names)}" for shape, names in layers.items()), f"stripes {sizes}"])


def _place(tensor: torch.Tensor, stripes: list[Stripe], blocks: int) -> tuple[str, str]:
    """Return how a layer's numbers lie within a block, in bytes, and where in which stripe they begin."""
    number, stripe = next(
        (number, stripe) for number, stripe in enumerate(stripes) if 0 <= _begins(tensor, stripe) < stripe.block_stride
    )
    dims = []
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        step = stride * tensor.element_size()
        if step >= blocks * stripe.block_stride:
            dims.append(f"{size} stripes")
        elif (size - 1) * step >= stripe.block_stride:  # it goes over the blocks: those of a kernel may be smaller
            dims.append(f"{size // blocks} by block")
        else:
            dims.append(f"{size} by {step}")
    return f"{tensor.dtype} {' '.join(dims)}", f"{number}+{_begins(tensor, stripe)}"


def _begins(tensor: torch.Tensor, stripe: Stripe) -> int:
    return int(tensor.data_ptr() - stripe.memory.data_ptr()) - stripe.offset


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor's allocation as bytes, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _check_inside(memory: torch.Tensor, end: int, name: str) -> None:
    if end > memory.numel():
        raise ConfigError("kv_caches", name, f"an allocation of at least {end} bytes, it has {memory.numel()}")


@dataclass(frozen=True, slots=True)
class Copier:
    """What copies between these blocks and host slots, wherever those are."""

    block_bytes: int
    numa_node: int | None
    """Where host memory is next to the device, if that is known."""
    engine: Callable[..., CopyEngine]
    """Makes a copy engine for the slots of an arena; where blocks are packed, with what it has to know of that."""
    packed: bool = False

    @property
    def slot_bytes(self) -> int:
        """Bytes of a host slot."""
        return whole_tiles_bytes([self.block_bytes]) if self.packed else self.block_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a block that does not pack; 0 where blocks are not packed."""
        return self.block_bytes if self.packed else 0

    def shared_engine(self, arena: HostArena) -> CopyEngine:
        """Make a copy engine for slots that others use too."""
        if not self.packed:
            return self.engine(arena)
        unpacked = arena.unpacked if isinstance(arena, SharedArena) else None
        if unpacked is None or unpacked.arena.slot_bytes != self.block_bytes:
            raise ConfigError("packing", "on", f"memory with rows of {self.block_bytes} bytes for what does not pack")
        return self.engine(arena, unpacked=unpacked)


def make_copier(stripes: list[Stripe], blocks: int, copying: Copying) -> Copier:
    """Return what copies between these blocks and host slots: the one place that looks at the device."""
    device = stripes[0].memory.device
    if device.type == "cuda":
        return _make_cuda_copier(stripes, blocks, copying)
    if device.type != "cpu":
        raise ConfigError("device", str(device), "a CPU or a CUDA device: kvtide has no copy engine for others")
    regions = [
        Region(stripe.memory.numpy(), stripe.block_stride, stripe.block_stride, stripe.offset) for stripe in stripes
    ]
    cache = DeviceCache(regions, blocks=blocks)
    engine = partial(ThreadedCopyEngine, cache, threads=copying.threads)
    return Copier(cache.block_bytes, None, engine, copying.packed)


def _make_cuda_copier(stripes: list[Stripe], blocks: int, copying: Copying) -> Copier:
    from kvtide.copy.cuda import (  # noqa: PLC0415 (only where there is a GPU)
        CopyKit,
        CudaCache,
        CudaCopyEngine,
        CudaRegion,
        TorchGpu,
    )

    regions = [
        CudaRegion(stripe.memory.data_ptr() + stripe.offset, stripe.block_stride, stripe.block_stride, stripe.memory)
        for stripe in stripes
    ]
    cache = CudaCache(regions, blocks=blocks, device=stripes[0].memory.device.index or 0)
    gpu = TorchGpu(cache.device)
    kit = CopyKit(cache, staging_bytes=copying.staging_bytes, gpu=gpu, packed=copying.packed)
    kit.warm_up()  # a node may come with the first request, or later
    engine = partial(CudaCopyEngine, cache, kit=kit, starting=True)
    return Copier(cache.block_bytes, gpu.local_node(), engine, copying.packed)


def make_copy_engine(
    stripes: list[Stripe], blocks: int, slots: int, copying: Copying, sharing: Sharing = ALONE
) -> tuple[CopyEngine, HostArena]:
    """Return what copies between these blocks and newly mapped host slots."""
    copier = make_copier(stripes, blocks, copying)
    arena = sharing.open_arena(slots, copier.slot_bytes, row_bytes=copier.row_bytes, node=copier.numa_node)
    if not copying.packed or arena.shared:
        try:
            return copier.shared_engine(arena), arena
        except BaseException:
            arena.close()
            raise
    unpacked = UnpackedRows(HostArena(rows_for(arena.slots), copier.block_bytes), arena.slots)
    tell = partial(logger.info, "kvtide: packing is %s")
    trial = PackingTrial(arena, unpacked, tell) if copying.trial else None
    return copier.engine(arena, unpacked=unpacked, trial=trial), arena


def computes(stripes: list[Stripe]) -> bool:
    """Whether the device computes what was issued until now. On a CPU it is over."""
    device = stripes[0].memory.device
    return device.type == "cuda" and not torch.cuda.current_stream(device).query()


def fence(stripes: list[Stripe]) -> Fence | None:
    """Return what stands for all compute that was issued so far. On a CPU it is over (F6, F7)."""
    device = stripes[0].memory.device
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    wait: Fence = event.wait
    return wait

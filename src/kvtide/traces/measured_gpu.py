"""What the GPU of this machine does: its link, its memory, and a prefill through one layer of a model. Takes seconds.

The layer has random weights in 16 bits and is run by torch alone. On an H200 it tells 34,700 tokens per second for
Llama-3.1-8B, where vLLM computed 35,800.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvtide.copy.cuda.geometry import CudaCache, CudaRegion
from kvtide.copy.cuda.measure import measure
from kvtide.copy.cuda.torch_gpu import TorchGpu
from kvtide.traces.layer import Layer

PROMPT_TOKENS = 8192
"""Of the prefill: what vLLM computes in one step, if it is not told otherwise."""
_WARM_S, _MEASURED_S = 0.5, 1.0
_COPY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """The first GPU that torch finds."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    """Read and written by a copy inside of its memory."""
    store_bytes_per_s: float
    load_bytes_per_s: float
    layer: Layer
    """What was run."""
    layer_s: float
    """What a prefill of `PROMPT_TOKENS` took in one layer."""

    @property
    def prefill_tokens_per_s(self) -> float:
        """Through all layers."""
        return PROMPT_TOKENS / (self.layer_s * self.layer.count)

    @property
    def flops(self) -> float:
        """Of the layer's matrices, while all of the layer was run."""
        return 2 * self.layer.parameters * PROMPT_TOKENS / self.layer_s

    @property
    def text(self) -> str:
        """What was measured."""
        return (
            f"{self.name}: {self.store_bytes_per_s / 1e9:.1f} GB/s to the host, {self.load_bytes_per_s / 1e9:.1f} GB/s "
            f"from it, {PROMPT_TOKENS:,} tokens in {1000 * self.layer_s:.2f} ms through one layer of "
            f"{self.layer.parameters / 1e6:,.0f}M parameters"
        )


def measure_gpu(layer: Layer) -> MeasuredGpu:
    """Measure it. Raises what torch raises: there are many words for no GPU, and for one that has no memory left."""
    gpu = TorchGpu()
    torch = importlib.import_module("torch")
    about = torch.cuda.get_device_properties(0)
    with gpu.active(), torch.inference_mode():
        memory = gpu.allocate(4096)
        link = measure(gpu, CudaCache([CudaRegion(memory.address, 4096, 4096, memory)], blocks=1))
        return MeasuredGpu(
            name=str(about.name),
            memory_bytes=int(about.total_memory),
            memory_bytes_per_s=2 * _COPY_BYTES / _seconds(torch, _copy(torch)),
            store_bytes_per_s=link.store * 1e9,
            load_bytes_per_s=link.load * 1e9,
            layer=layer,
            layer_s=_seconds(torch, _prefill(torch, layer)),
        )


def _seconds(torch: Any, run: Callable[[], object]) -> float:
    """Return what the median run takes once kernels are chosen and clocks have come down to what power allows."""
    _times_s(torch, run, _WARM_S)
    return max(1e-9, median(_times_s(torch, run, _MEASURED_S)))


def _times_s(torch: Any, run: Callable[[], object], seconds: float) -> list[float]:
    """Run for so long, once at least."""
    times_s: list[float] = []
    end_s = time.perf_counter() + seconds
    while not times_s or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begin_s)
    return times_s


def _copy(torch: Any) -> Callable[[], object]:
    source, to = (torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    return lambda: to.copy_(source)


def _prefill(torch: Any, layer: Layer) -> Callable[[], object]:
    """Return a run of a layer: attention of every token to those before it, and the feed-forward layer."""
    functions = torch.nn.functional

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5

    wide, narrow = layer.heads * layer.head_size, layer.kv_heads * layer.head_size
    queries_keys_values, out = random(wide + 2 * narrow, layer.hidden), random(layer.hidden, wide)
    gate_up, down = random(2 * layer.mlp, layer.hidden), random(layer.hidden, layer.mlp)
    tokens = random(PROMPT_TOKENS, layer.hidden)

    def normed(values: Any) -> Any:
        return functions.layer_norm(values, (layer.hidden,))

    def by_head(values: Any) -> Any:
        heads = values.view(1, PROMPT_TOKENS, -1, layer.head_size).transpose(1, 2)
        return heads.repeat_interleave(layer.heads // heads.shape[1], dim=1)

    def run() -> Any:
        parts = functions.linear(normed(tokens), queries_keys_values).split([wide, narrow, narrow], dim=-1)
        seen = functions.scaled_dot_product_attention(*map(by_head, parts), is_causal=True)
        between = tokens + functions.linear(seen.transpose(1, 2).reshape(PROMPT_TOKENS, wide), out)
        gate, up = functions.linear(normed(between), gate_up).chunk(2, dim=-1)
        return between + functions.linear(functions.silu(gate) * up, down)

    return run

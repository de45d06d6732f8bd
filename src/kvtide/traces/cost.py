"""What serving costs in time: a few numbers about a GPU and a model."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.errors import ConfigError

_PARAMETERS = 8e9
"""Presets are for a model of this size in 16 bits, such as Llama-3.1-8B."""
_WEIGHT_BYTES = 2 * _PARAMETERS
_COMPUTE_SHARE = 0.5
"""Share of the peak that a long prefill reaches."""
_MEMORY_SHARE = 0.6
"""Share of the peak bandwidth that decoding reaches."""
_LINK_SHARE = 0.86
"""Share of the link's nominal rate that one large copy reaches: 55 of 64 GB/s, measured on an H200."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Rates, and where they come from."""

    prefill_tokens_per_s: float
    decode_s_per_token: float
    load_bytes_per_s: float
    store_bytes_per_s: float
    overhead_s: float
    """Of each request, besides tokens and bytes: scheduling, launching, sampling."""
    source: str

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("prefill_tokens_per_s", "decode_s_per_token", "load_bytes_per_s", "store_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(name, getattr(self, name), "a number above 0")


def _from_datasheet(name: str, tflops: float, memory_gb_per_s: float, link_gb_per_s: float) -> CostModel:
    """Derive rates from peaks: dense 16-bit compute, memory bandwidth, and the PCIe link one way."""
    return CostModel(
        prefill_tokens_per_s=tflops * 1e12 * _COMPUTE_SHARE / (2 * _PARAMETERS),
        decode_s_per_token=_WEIGHT_BYTES / (memory_gb_per_s * 1e9 * _MEMORY_SHARE),
        load_bytes_per_s=link_gb_per_s * 1e9 * _LINK_SHARE,
        store_bytes_per_s=link_gb_per_s * 1e9 * _LINK_SHARE,
        overhead_s=0.02,
        source=(
            f"NVIDIA's data sheet of the {name}: {tflops:g} TFLOPS, {memory_gb_per_s:g} GB/s, PCIe {link_gb_per_s:g} "
            f"GB/s; {_COMPUTE_SHARE:.0%}, {_MEMORY_SHARE:.0%} and {_LINK_SHARE:.0%} of them; a model of 8B parameters"
        ),
    )


PRESETS: dict[str, CostModel] = {
    "h200": CostModel(
        prefill_tokens_per_s=16_000 / (0.469 - 0.022),
        decode_s_per_token=0.012,
        load_bytes_per_s=54.9e9,
        store_bytes_per_s=55.4e9,
        overhead_s=0.022,
        source="measured on one H200 SXM with vLLM 0.24, Llama-3.1-8B's shape: 16,000 tokens in 469 ms, 22 if cached",
    ),
    "h100": _from_datasheet("H100 SXM", 989, 3350, 64),
    "a100": _from_datasheet("A100 80GB SXM", 312, 2039, 32),
    "l4": _from_datasheet("L4", 121, 300, 32),
}
"""By GPU."""


def preset(name: str) -> CostModel:
    """Return the cost model of a GPU."""
    if name not in PRESETS:
        raise ConfigError("--gpu", name, "one of " + ", ".join(PRESETS))
    return PRESETS[name]

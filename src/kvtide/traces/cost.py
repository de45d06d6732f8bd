"""What serving costs in time: a few numbers about a machine and a model. `rates.py` says where they come from."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CostModel:
    """Rates, as plain numbers."""

    prefill_tokens_per_s: float
    decode_s_per_token: float
    load_bytes_per_s: float
    store_bytes_per_s: float
    overhead_s: float
    """Of each request, besides tokens and bytes: scheduling, launching, sampling."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("prefill_tokens_per_s", "decode_s_per_token", "load_bytes_per_s", "store_bytes_per_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(name, getattr(self, name), "a number above 0")

"""All that a plan takes for granted, with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvtide.traces.machine import Machine
from kvtide.traces.rates import Sourced
from kvtide.units import size_text


def assumptions(machine: Machine, prices: Mapping[str, Sourced]) -> dict[str, Sourced]:
    """Return numbers by name."""
    rates, device = machine.rates, machine.device
    if not machine.prefix_cache:
        device = replace(device, how=f"{device.how}; without a prefix cache")
    host_copy = {} if machine.measured is None else {"host_copy_bytes_per_s": machine.measured.host_copy}
    return {
        "device_bytes": device,
        "bytes_per_token": machine.bytes_per_token,
        "prefill_tokens_per_s": rates.prefill_tokens_per_s,
        "decode_s_per_token": rates.decode_s_per_token,
        "load_bytes_per_s": rates.load_bytes_per_s,
        "store_bytes_per_s": rates.store_bytes_per_s,
        **host_copy,
        "overhead_s": rates.overhead_s,
        "gpu_hour_dollars": prices["gpu_hour"],
        "gib_hour_dollars": prices["gib_hour"],
    }


def assumption_texts(taken: Mapping[str, Sourced]) -> Iterator[str]:
    """Yield a line for each."""
    for name, rate in taken.items():
        if name.endswith("bytes_per_s"):
            value = f"{rate.value / 1e9:.1f} GB/s"
        else:
            value = size_text(rate.value) if "bytes" in name else f"{rate.value:,.5g}"
        yield f"{name.replace('_bytes_per_s', '').replace('_bytes', '').replace('_', ' ')}: {value} ({rate.text})"

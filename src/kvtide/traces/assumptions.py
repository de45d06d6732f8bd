"""All that a plan or a replay takes for granted, with where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from kvtide.traces.machine import Machine
from kvtide.traces.prices import dollars_text
from kvtide.traces.rates import Sourced
from kvtide.units import seconds_text, size_text


def assumptions(machine: Machine) -> dict[str, Sourced]:
    """Return numbers about a machine, by name."""
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
    }


def assumption_texts(taken: Mapping[str, Sourced]) -> dict[str, list[str]]:
    """Return texts for people, each with those that belong below it: numbers from one place, which is named once."""
    texts: dict[str, list[str]] = {}
    for name, rate in taken.items():
        label, shown = _SHOWN[name]
        text = f"{label}: {shown(rate.value)}"
        if rate.where:
            below = texts.setdefault(f"{rate.where} ({rate.source}):", [])
            below.append(f"{text} ({rate.how})" if rate.how else text)
        else:
            texts[f"{text} ({rate.text})"] = []
    return texts


def assumption_lines(taken: Mapping[str, Sourced]) -> Iterator[str]:
    """Yield the same as lines."""
    for text, below in assumption_texts(taken).items():
        yield f"  {text}"
        yield from (f"    {each}" for each in below)


def _bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"


_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "device_bytes": ("KV memory of the device", size_text),
    "bytes_per_token": ("KV of a token", size_text),
    "prefill_tokens_per_s": ("prefill", lambda rate: f"{rate:,.0f} tokens/s"),
    "decode_s_per_token": ("decode", lambda each_s: f"{seconds_text(each_s)} per token"),
    "load_bytes_per_s": ("load", _bandwidth),
    "store_bytes_per_s": ("store", _bandwidth),
    "host_copy_bytes_per_s": ("copies in host memory", _bandwidth),
    "overhead_s": ("overhead", lambda each_s: f"{seconds_text(each_s)} per request"),
    "gpu_hour_dollars": ("a GPU", lambda price: f"{dollars_text(price)} per hour"),
    "gib_hour_dollars": ("host memory", lambda price: f"{dollars_text(price)} per GiB and hour"),
}
"""How people read them."""

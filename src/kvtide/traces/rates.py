"""Where the rates of a plan or a replay come from: given, measured, derived from GPU and model, or a default."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from kvtide.traces.cost import CostModel
from kvtide.traces.gpus import DEFAULT_GPU, GPUS, Gpu
from kvtide.traces.model import DEFAULT_MODEL, Model

Kind = Literal["given", "measured", "derived", "default"]

COMPUTE_SHARE = 0.5
"""Share of the peak that a long prefill reaches."""
MEMORY_SHARE = 0.6
"""Share of the peak bandwidth that decoding reaches."""
LINK_SHARE = 0.86
"""Share of the link's nominal rate that one large copy reaches: 55 of 64 GB/s, measured on an H200."""
_OVERHEAD_S = 0.02
_H200_PREFILL = 16_000 / (0.469 - 0.022)
_H200_DECODE_S = 0.012
_H200_OVERHEAD_S = 0.022
_H200_LOAD, _H200_STORE = 54.9e9, 55.4e9
_H200_RUN = "measured on one H200 SXM with vLLM 0.24, Llama-3.1-8B's shape"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number, what kind of knowledge it is, and where it comes from in words."""

    value: float
    source: Kind
    how: str
    where: str = ""
    """What it comes from, if other numbers come from there too: a run, a data sheet."""

    @property
    def about(self) -> str:
        """Where it comes from in all words."""
        return ": ".join(filter(None, (self.where, self.how)))

    @property
    def text(self) -> str:
        """The same with the kind of knowledge, for people."""
        return ": ".join(filter(None, (self.source, self.about)))

    def as_json(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"value": self.value, "source": self.source, "how": self.about}


@dataclass(frozen=True, slots=True)
class Rates:
    """All that the cost model needs."""

    prefill_tokens_per_s: Sourced
    decode_s_per_token: Sourced
    load_bytes_per_s: Sourced
    store_bytes_per_s: Sourced
    overhead_s: Sourced

    def cost(self) -> CostModel:
        """Return the plain numbers."""
        return CostModel(**{field.name: getattr(self, field.name).value for field in fields(self)})

    def given(self, **values: float | None) -> Rates:
        """Return the same with what somebody has said instead."""
        said = {name: Sourced(value, "given", "") for name, value in values.items() if value is not None}
        return replace(self, **said)

    def of_gpus(self, gpus: int) -> Rates:
        """Return the rates of several GPUs: each has its own compute and link. One request decodes as before."""
        if gpus == 1:
            return self
        shared = ("prefill_tokens_per_s", "load_bytes_per_s", "store_bytes_per_s")
        rates = {name: getattr(self, name) for name in shared}
        return replace(
            self,
            **{
                name: replace(rate, value=rate.value * gpus, how=", ".join(filter(None, (rate.how, f"{gpus} GPUs"))))
                for name, rate in rates.items()
            },
        )


def derive_rates(gpu: Gpu, model: Model, *, default: bool = False) -> Rates:
    """Derive rates from a GPU and a model. `default`: nobody has named either."""
    kind: Kind = "default" if default else "derived"
    parameters = model.active_parameters or DEFAULT_MODEL.active_parameters
    weight_bytes = model.weight_bytes or DEFAULT_MODEL.weight_bytes
    assert parameters is not None
    assert weight_bytes is not None
    known = model.active_parameters is not None
    whose = _many(parameters) + ("" if known else f" ({DEFAULT_MODEL.name}: {model.name} tells none)")
    read_bytes = weight_bytes * (parameters / (model.parameters or parameters))
    if gpu.name == GPUS[DEFAULT_GPU].name:
        return _like_the_h200(kind, parameters, read_bytes, whose)
    sheet = gpu.told_by
    link = Sourced(
        gpu.link_gb_per_s * 1e9 * LINK_SHARE, kind, f"{LINK_SHARE:.0%} of PCIe {gpu.link_gb_per_s:g} GB/s", sheet
    )
    return Rates(
        Sourced(
            gpu.tflops * 1e12 * COMPUTE_SHARE / (2 * parameters),
            kind,
            f"{COMPUTE_SHARE:.0%} of {gpu.tflops:g} TFLOPS, {whose}",
            sheet,
        ),
        Sourced(
            read_bytes / (gpu.memory_gb_per_s * 1e9 * MEMORY_SHARE),
            kind,
            f"{MEMORY_SHARE:.0%} of {gpu.memory_gb_per_s:g} GB/s, {read_bytes / 1e9:.3g} GB of weights",
            sheet,
        ),
        link,
        link,
        Sourced(_OVERHEAD_S, "default", "about what vLLM takes"),
    )


def _like_the_h200(kind: Kind, parameters: float, read_bytes: float, whose: str) -> Rates:
    """Scale what was measured on an H200 by the size of the model."""
    assert DEFAULT_MODEL.parameters is not None
    assert DEFAULT_MODEL.weight_bytes is not None
    computing, reading = parameters / DEFAULT_MODEL.parameters, read_bytes / DEFAULT_MODEL.weight_bytes
    scaled = "" if whose == _many(DEFAULT_MODEL.parameters) else f"scaled to {whose}"
    prefill = ", ".join(filter(None, ("16,000 tokens in 469 ms, 22 if cached", scaled)))
    return Rates(
        Sourced(_H200_PREFILL / computing, kind, prefill, _H200_RUN),
        Sourced(_H200_DECODE_S * reading, kind, scaled, _H200_RUN),
        Sourced(_H200_LOAD, kind, "one large copy", _H200_RUN),
        Sourced(_H200_STORE, kind, "one large copy", _H200_RUN),
        Sourced(_H200_OVERHEAD_S, kind, "", _H200_RUN),
    )


def _many(parameters: float) -> str:
    return f"{parameters / 1e9:.3g}B parameters"

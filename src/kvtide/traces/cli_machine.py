"""Options that describe the model and the machine, shared by the commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import click

from kvtide.commands import SIZES, Arguments, File, Real, Suggested, Whole, flag, option
from kvtide.copy.packing import PLAIN_TILE_BYTES, TILE_BYTES
from kvtide.copy.unpacked import SLOTS_PER_ROW
from kvtide.errors import ConfigError
from kvtide.output import tell
from kvtide.traces.cli_common import NONE, rate, size, size_or_none
from kvtide.traces.device_memory import kv_memory
from kvtide.traces.gpus import DEFAULT_GPU, GPUS, Gpu, gpu_named
from kvtide.traces.layer import Layer
from kvtide.traces.machine import Machine
from kvtide.traces.measured import Measured, gpu_here, measured_rates
from kvtide.traces.model import DEFAULT_MODEL, Model, read_model
from kvtide.traces.rates import Sourced, derive_rates
from kvtide.units import size_text

PACKED_TIMES = 1 / (TILE_BYTES / PLAIN_TILE_BYTES + 1 / SLOTS_PER_ROW)
_KV_OPTIONS = "give --bytes-per-token or --model-config"
_PARAMETERS = re.compile(r"([0-9.]+(?:e[0-9]+)?)\s*([mbt]?)", re.IGNORECASE)
_TIMES = {"": 1.0, "m": 1e6, "b": 1e9, "t": 1e12}
_PARAMETERS_MIN = 10**6


def machine_options() -> list[click.Option]:
    """Return what describes the model and the machine."""
    usual = f"from --model-config, or {DEFAULT_MODEL.bytes_per_token}, {DEFAULT_MODEL.name}"
    kv = f"bytes of KV per token (default: {usual}); {SIZES}"
    config = "a model's config.json: bytes of KV per token, parameters, weights, and from these speed and room"
    gpus = f"from which rates and sizes are derived: {', '.join(GPUS)} (default: {DEFAULT_GPU})"
    device = f'KV memory of each GPU, or "{NONE}": no prefix cache there (default: from the GPU and the model)'
    instead = "instead of what is derived"
    return [
        option("--bytes-per-token", kv, metavar="SIZE"),
        option("--model-config", config, File()),
        option("--parameters", 'parameters of the model, such as "70B"', metavar="N"),
        option("--weights", "bytes of its weights (default: from the parameters)", metavar="SIZE"),
        option("--gpu", gpus, Suggested(tuple(GPUS))),
        option("--gpus", "GPUs that share the traffic and the weights", Whole(1), default=1),
        option("--device", device, metavar="SIZE"),
        option("--prefill", f"prefill tokens per second of each GPU, {instead}", Real()),
        option("--decode", f"seconds per output token, {instead}", Real(), metavar="S"),
        flag("--packing", f"KV is bf16 and packed on the host and below: {PACKED_TIMES:.2f} times as much fits there"),
        option(
            "--link", f'bytes per second of each GPU\'s link, each way, such as "25GB/s", {instead}', metavar="RATE"
        ),
    ]


def machine_of(args: Arguments, measure: Callable[[Layer | None], Measured] | None = None) -> Machine:
    """Return what was described. What was not is measured, where that is asked for and can be done, or derived."""
    model = _model(args)
    if args.packing and model.dtype != "bfloat16" and args.bytes_per_token is None:
        instead = "If its KV is kept in bfloat16 all the same, add --bytes-per-token"
        raise ConfigError("--packing", model.name, f"a model in bfloat16: {model.dtype} does not pack. {instead}")
    doubt = _kv_doubt(args, model)
    if doubt is not None:
        tell(f"kvtide: {doubt}")
    gpu = gpu_named(args.gpu or DEFAULT_GPU)
    link = None if args.link is None else float(rate("--link", args.link))
    measured = None if measure is None else measure(model.layer)
    found = None if measured is None else measured.gpu
    if found is not None:
        gpu = gpu_here(found, args.gpu)
    default = args.gpu is None and found is None and model is DEFAULT_MODEL
    rates = derive_rates(gpu, model, default=default)
    if found is not None:
        rates = measured_rates(rates, found, model)
    rates = rates.given(
        prefill_tokens_per_s=args.prefill,
        decode_s_per_token=args.decode,
        load_bytes_per_s=link,
        store_bytes_per_s=link,
    )
    return Machine(
        model,
        gpu,
        args.gpus,
        rates.of_gpus(args.gpus),
        _device(args, gpu, model, default=default),
        prefix_cache=args.device != NONE,
        bytes_per_token=_bytes_per_token(args, model),
        measured=measured,
        packing=PACKED_TIMES if args.packing else 1.0,
    )


def _device(args: Arguments, gpu: Gpu, model: Model, *, default: bool) -> Sourced:
    given = None if args.device is None else size_or_none("--device", args.device)
    if given is not None:
        return Sourced(float(given * args.gpus), "given", "")
    return kv_memory(gpu, model, args.gpus, default=default)


def _bytes_per_token(args: Arguments, model: Model) -> Sourced:
    packed = f"; packed on the host, {PACKED_TIMES:.2f} times less" if args.packing else ""
    if args.bytes_per_token is not None:
        return Sourced(model.bytes_per_token, "given", packed.removeprefix("; "))
    if args.model_config is not None:
        all_full = "" if model.partly_full is None else ", all layers taken as full attention"
        return Sourced(model.bytes_per_token, "derived", f"KV of {model.name}{all_full}{packed}")
    whose = f"KV of {model.name}" if args.parameters is None else f"still that of {DEFAULT_MODEL.name}: {_KV_OPTIONS}"
    return Sourced(model.bytes_per_token, "default", f"{whose}{packed}")


def _kv_doubt(args: Arguments, model: Model) -> str | None:
    """Say why the KV of a token may be that of other models; None if there is no reason to think so."""
    if args.bytes_per_token is not None:
        return None
    if model.partly_full is not None:
        return model.partly_full.text(model.name, model.bytes_per_token)
    if args.parameters is None or args.model_config is not None:
        return None
    return f"KV of a token is still that of {DEFAULT_MODEL.name}, {size_text(model.bytes_per_token)}: {_KV_OPTIONS}"


def _model(args: Arguments) -> Model:
    model = DEFAULT_MODEL
    if args.model_config is not None:
        model = read_model(args.model_config)
    name = model.name if args.model_config is not None else "a model"
    if args.bytes_per_token is not None:
        model = replace(model, name=name, bytes_per_token=size("--bytes-per-token", args.bytes_per_token))
    if args.parameters is not None:
        count = _parameters(args.parameters)
        per_parameter = (model.weight_bytes or 2.0) / (model.parameters or 1.0) if model.parameters else 2.0
        active = count * (model.active_parameters or count) / (model.parameters or count)
        model = replace(
            model, name=name, parameters=count, active_parameters=active, weight_bytes=count * per_parameter, layer=None
        )
    if args.weights is not None:
        model = replace(model, weight_bytes=float(size("--weights", args.weights)))
    return model


def _parameters(text: str) -> float:
    match = _PARAMETERS.fullmatch(text.strip())
    try:
        count = float(match[1]) * _TIMES[match[2].lower()] if match else 0.0
    except ValueError:
        count = 0.0
    if count < _PARAMETERS_MIN:
        raise ConfigError("--parameters", text, 'at least a million, such as "70B"')
    return count

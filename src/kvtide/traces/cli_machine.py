"""Options that describe the model and the machine, shared by the commands."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

from kvtide.errors import ConfigError
from kvtide.traces.cli_common import number, size
from kvtide.traces.device_memory import kv_memory
from kvtide.traces.gpus import DEFAULT_GPU, GPUS, Gpu, gpu_named
from kvtide.traces.machine import Machine
from kvtide.traces.measured import Measured, measured_rates
from kvtide.traces.model import DEFAULT_MODEL, Model, read_model
from kvtide.traces.rates import Sourced, derive_rates

NO_DEVICE = "none"
_PARAMETERS = re.compile(r"([0-9.]+(?:e[0-9]+)?)\s*([mbt]?)", re.IGNORECASE)
_TIMES = {"": 1.0, "m": 1e6, "b": 1e9, "t": 1e12}


def add_machine(command: argparse.ArgumentParser) -> None:
    """Add what describes the model and the machine."""
    kv = f"bytes of KV per token (default: {DEFAULT_MODEL.bytes_per_token}, {DEFAULT_MODEL.name})"
    command.add_argument("--bytes-per-token", metavar="SIZE", help=kv)
    config = "a model's config.json: bytes of KV per token, parameters, weights, and from these speed and room"
    command.add_argument("--model-config", metavar="FILE", help=config)
    command.add_argument("--parameters", metavar="N", help='parameters of the model, such as "70B"')
    command.add_argument("--weights", metavar="SIZE", help="bytes of its weights (default: from the parameters)")
    gpus = f"from which rates and sizes are derived: {', '.join(GPUS)} (default: {DEFAULT_GPU})"
    command.add_argument("--gpu", metavar="NAME", help=gpus)
    command.add_argument(
        "--gpus", type=number, default=1, metavar="N", help="GPUs that share the traffic and the weights (default: 1)"
    )
    device = f'KV memory of each GPU, or "{NO_DEVICE}": no prefix cache there (default: from the GPU and the model)'
    command.add_argument("--device", metavar="SIZE", help=device)
    rate = "instead of what is derived"
    command.add_argument("--prefill", type=float, metavar="N", help=f"prefill tokens per second of each GPU, {rate}")
    command.add_argument("--decode", type=float, metavar="S", help=f"seconds per output token, {rate}")
    link = f'bytes per second of each GPU\'s link, each way, such as "25GB/s", {rate}'
    command.add_argument("--link", metavar="SIZE", help=link)


def machine_of(args: argparse.Namespace, measured: Measured | None = None) -> Machine:
    """Return what was described. What was not is measured, if it was, or derived."""
    if not isinstance(args.gpus, int) or args.gpus < 1:
        raise ConfigError("--gpus", args.gpus, "a whole number of at least 1")
    model = _model(args)
    default = args.gpu is None and model is DEFAULT_MODEL
    gpu = gpu_named(args.gpu or DEFAULT_GPU)
    link = None if args.link is None else float(size("--link", args.link.removesuffix("/s")))
    for option in ("prefill", "decode"):
        value = getattr(args, option)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"--{option}", value, "a number above 0")
    rates = derive_rates(gpu, model, default=default)
    if measured is not None:
        rates = measured_rates(rates, measured, model)
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
        prefix_cache=args.device != NO_DEVICE,
        bytes_per_token=_bytes_per_token(args, model),
        measured=measured,
    )


def _device(args: argparse.Namespace, gpu: Gpu, model: Model, *, default: bool) -> Sourced:
    if args.device not in (None, NO_DEVICE):
        return Sourced(float(size("--device", args.device) * args.gpus), "given", "")
    return kv_memory(gpu, model, args.gpus, default=default)


def _bytes_per_token(args: argparse.Namespace, model: Model) -> Sourced:
    if args.bytes_per_token is not None:
        return Sourced(model.bytes_per_token, "given", "")
    return Sourced(model.bytes_per_token, "default" if args.model_config is None else "derived", f"KV of {model.name}")


def _model(args: argparse.Namespace) -> Model:
    model = DEFAULT_MODEL
    if args.model_config is not None:
        if args.bytes_per_token is not None:
            raise ConfigError("--bytes-per-token", args.bytes_per_token, "not to be used with --model-config")
        model = read_model(args.model_config)
    if args.bytes_per_token is not None:
        model = replace(model, name="a model", bytes_per_token=size("--bytes-per-token", args.bytes_per_token))
    if args.parameters is not None:
        count = _parameters(args.parameters)
        per_parameter = (model.weight_bytes or 2.0) / (model.parameters or 1.0) if model.parameters else 2.0
        active = count * (model.active_parameters or count) / (model.parameters or count)
        name = model.name if args.model_config is not None else "a model"
        model = replace(
            model, name=name, parameters=count, active_parameters=active, weight_bytes=count * per_parameter
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
    if count <= 0:
        raise ConfigError("--parameters", text, 'a number above 0, such as "70B"')
    return count

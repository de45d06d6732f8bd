"""`kvtide replay`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import get_args

from rich.console import Console

from kvtide.core import POLICIES
from kvtide.core.config import Mode
from kvtide.errors import ConfigError
from kvtide.options import parse_choice, parse_count
from kvtide.traces.cli_common import add_admission, admission_of, number, parser, put, size
from kvtide.traces.cli_input import add_input, input_of
from kvtide.traces.cli_machine import add_machine, machine_of
from kvtide.traces.machine import Machine
from kvtide.traces.plots import draw_replay, figure
from kvtide.traces.progress import counted, progress
from kvtide.traces.replay import Replay, ReplayConfig
from kvtide.traces.replay_below import BelowModel, Write
from kvtide.traces.replay_report import as_json, replay_tables
from kvtide.traces.writing import check_writable, write_whole
from kvtide.units import size_text

TEXT = """\
Serve a trace in virtual time with the real core: what comes from the device, from host memory and from below
it, what is computed and why, how long users wait. Only the time that computing and copying take is a model."""

EXAMPLES = """\
  kvtide replay                                          a synthetic workload
  kvtide replay trace.jsonl --host 256GiB                a trace in Mooncake's format
  kvtide replay chats.jsonl --tokenizer tokenizer.json   a log of chat completion requests
  kvtide replay trace.jsonl --host 64GiB --disk 2TiB --disk-bandwidth 6GB/s
  kvtide replay trace.jsonl --servers 4 --disk 2TiB --store 16TiB --store-bandwidth 10GB/s
  kvtide replay trace.jsonl --gpus 8 --policy forecast --json > replay.json"""

NO_HOST = "none"
TIERS = {"disk": "a disk below the host memory of each server", "store": "a store below that, one for all servers"}
"""What can be below host memory, nearest first."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the subcommand known."""
    command = parser(commands, "replay", "serve a trace in virtual time and report hits and times", TEXT, EXAMPLES)
    add_input(command)
    add_machine(command)
    host = f'host memory, or "{NO_HOST}" (default: 256GiB)'
    command.add_argument("--host", default="256GiB", metavar="SIZE", help=host)
    policies = f"which block leaves the host first: {', '.join(POLICIES)} (default: prefix)"
    command.add_argument("--policy", default="prefix", metavar="NAME", help=policies)
    add_admission(command)
    command.add_argument("--mode", default="eager", metavar="NAME", help="eager or lazy (default: eager)")
    _add_below(command)
    command.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    command.add_argument("--plot", metavar="FILE.png", help="draw shares over time and times to first token")
    command.set_defaults(run=run)


def _add_below(command: argparse.ArgumentParser) -> None:
    """Add what describes the tiers below host memory, and how many servers there are."""
    for name, what in TIERS.items():
        command.add_argument(f"--{name}", metavar="SIZE", help=f"{what} (default: none)")
        rate = 'of reading it, and of writing it, per second, such as "3GB/s" (default: 3GB/s)'
        command.add_argument(f"--{name}-bandwidth", default="3GB/s", metavar="SIZE", help=rate)
        first = "seconds before the first byte (default: 0.001)"
        command.add_argument(f"--{name}-latency", type=float, default=0.001, metavar="S", help=first)
        late = "requests do not wait when nothing has come for so many seconds (default: 0.05)"
        command.add_argument(f"--{name}-deadline", type=float, default=0.05, metavar="S", help=late)
        write = "when blocks go there: through, as soon as they are on the host; evict, when they leave it"
        command.add_argument(f"--{name}-write", default="through", metavar="NAME", help=f"{write} (default: through)")
    servers = "servers that take turns with the requests, each with its own GPUs and host memory (default: 1)"
    command.add_argument("--servers", type=number, default=1, metavar="N", help=servers)


def run(args: argparse.Namespace) -> int:
    """Replay a trace."""
    if args.plot is not None:
        check_writable("--plot", args.plot, (".png",))
        figure(1, 1)  # fails now, not after the run, if it cannot be drawn
    source = input_of(args)
    machine = machine_of(args)
    config = _config(args, machine, source.block_tokens)
    replay = Replay(config)
    with progress() as advance:
        result = replay.run(counted(source.requests, "requests", advance))
    source.tell_missing()
    if args.plot is not None:
        write_whole(args.plot, lambda path: draw_replay(result, source.title, path))
    if args.json:
        rates = {"device_bytes": asdict(machine.device), **machine.rates.as_json()}
        put(
            json.dumps(
                {
                    **source.as_json(),
                    "cost_source": config.cost.source,
                    "rates": rates,
                    **as_json(result),
                },
                indent=2,
            )
        )
        return 0
    out = Console()
    for table in replay_tables(result):
        out.print(table)
    out.print(f"times: {config.cost.source}", highlight=False, soft_wrap=True)
    out.print(f"device: {size_text(machine.device.value)}, {machine.device.text}", highlight=False, soft_wrap=True)
    return 0


def _config(args: argparse.Namespace, machine: Machine, block_tokens: int) -> ReplayConfig:
    block_bytes = machine.model.bytes_per_token * block_tokens
    host_bytes = 0 if args.host == NO_HOST else size("--host", args.host)
    if 0 < host_bytes < block_bytes:
        raise ConfigError("--host", args.host, f"at least one block, {block_bytes} bytes")
    return ReplayConfig(
        block_tokens=block_tokens,
        bytes_per_token=machine.model.bytes_per_token,
        device_blocks=machine.device_blocks(block_tokens),
        host_bytes=host_bytes,
        policy=parse_choice("--policy", args.policy, tuple(POLICIES)),
        mode=parse_choice("--mode", args.mode, get_args(Mode)),
        cost=machine.cost,
        prefix_cache=machine.prefix_cache,
        admission=admission_of(args),
        below=tuple(_below(args, name, block_bytes) for name in TIERS if getattr(args, name) is not None),
        servers=parse_count("--servers", args.servers),
    )


def _below(args: argparse.Namespace, name: str, block_bytes: int) -> BelowModel:
    options = {option: getattr(args, f"{name}_{option}") for option in ("bandwidth", "latency", "deadline", "write")}
    size_bytes = size(f"--{name}", getattr(args, name))
    if size_bytes < block_bytes:
        raise ConfigError(f"--{name}", getattr(args, name), f"at least one block, {block_bytes} bytes")
    bytes_per_s = size(f"--{name}-bandwidth", options["bandwidth"].removesuffix("/s"))
    return BelowModel(
        size_bytes=size_bytes,
        read_bytes_per_s=bytes_per_s,
        write_bytes_per_s=bytes_per_s,
        latency_s=options["latency"],
        deadline_s=options["deadline"],
        write=parse_choice(f"--{name}-write", options["write"], get_args(Write)),
        shared=name == "store",
    )

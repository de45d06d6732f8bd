"""`kvtide replay`."""

from __future__ import annotations

import json
from typing import get_args

import click

from kvtide.commands import (
    SIZES,
    Arguments,
    Choice,
    File,
    Real,
    Whole,
    command,
    exit_codes,
    flag,
    option,
    refuse_written,
)
from kvtide.core import POLICIES
from kvtide.core.config import Mode
from kvtide.errors import ConfigError
from kvtide.output import Output, put
from kvtide.progress import counted, progress
from kvtide.traces.assumptions import assumption_lines, assumptions
from kvtide.traces.cli_common import NONE, admission_option, rate, size, size_or_none
from kvtide.traces.cli_input import TRACE_TEXT, input_of, input_options
from kvtide.traces.cli_machine import machine_of, machine_options
from kvtide.traces.machine import Machine
from kvtide.traces.plots import draw_replay, figure
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
  kvtide replay trace.jsonl --gpus 8 --policy forecast --json > replay.json""" + exit_codes()

TIERS = {"disk": "a disk below the host memory of each server", "store": "a store below that, one for all servers"}
"""What can be below host memory, nearest first."""
_OF_TIERS = ("bandwidth", "latency", "deadline", "write")


def run(args: Arguments) -> int:
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
    taken = assumptions(machine)
    if args.json:
        rates = {name: rate.as_json() for name, rate in taken.items()}
        put(json.dumps({**source.as_json(), "rates": rates, **as_json(result)}, indent=2))
        return 0
    out = Output()
    for table in replay_tables(result):
        out.table(table)
    for line in assumption_lines(taken):
        out.print(line, highlight=False, soft_wrap=True)
    return 0


def _config(args: Arguments, machine: Machine, block_tokens: int) -> ReplayConfig:
    block_bytes = machine.host_bytes_per_token * block_tokens
    host_bytes = size_or_none("--host", args.host) or 0
    if not host_bytes:
        refuse_written(tuple(TIERS), "host memory (--host SIZE) above it: all blocks go through that")
    if 0 < host_bytes < block_bytes:
        raise ConfigError("--host", args.host, f"at least one block, {size_text(block_bytes)}")
    return ReplayConfig(
        block_tokens=block_tokens,
        bytes_per_token=machine.host_bytes_per_token,
        device_blocks=machine.device_blocks(block_tokens),
        host_bytes=host_bytes,
        policy=args.policy,
        mode=args.mode,
        cost=machine.cost,
        prefix_cache=machine.prefix_cache,
        admission=args.admission,
        below=_all_below(args, block_bytes),
        servers=args.servers,
    )


def _all_below(args: Arguments, block_bytes: int) -> tuple[BelowModel, ...]:
    for name in TIERS:
        if getattr(args, name) is None:
            refuse_written([f"{name}_{option}" for option in _OF_TIERS], f"to be used with --{name}")
    return tuple(_below(args, name, block_bytes) for name in TIERS if getattr(args, name) is not None)


def _below(args: Arguments, name: str, block_bytes: int) -> BelowModel:
    options = {option: getattr(args, f"{name}_{option}") for option in _OF_TIERS}
    size_bytes = size(f"--{name}", getattr(args, name))
    if size_bytes < block_bytes:
        raise ConfigError(f"--{name}", getattr(args, name), f"at least one block, {size_text(block_bytes)}")
    bytes_per_s = rate(f"--{name}-bandwidth", options["bandwidth"])
    return BelowModel(
        size_bytes=size_bytes,
        read_bytes_per_s=bytes_per_s,
        write_bytes_per_s=bytes_per_s,
        latency_s=options["latency"],
        deadline_s=options["deadline"],
        write=options["write"],
        shared=name == "store",
    )


def _tier_options(name: str, what: str) -> list[click.Option]:
    """Return what describes a tier below host memory."""
    return [
        option(f"--{name}", f"{what} (default: none)", metavar="SIZE"),
        option(
            f"--{name}-bandwidth",
            "of reading it, and of writing it, in bytes per second",
            default="3GB/s",
            metavar="RATE",
        ),
        option(f"--{name}-latency", "seconds before the first byte", Real(0), default=0.001, metavar="S"),
        option(
            f"--{name}-deadline",
            "requests do not wait when nothing has come for so many seconds",
            Real(),
            default=0.05,
            metavar="S",
        ),
        option(
            f"--{name}-write",
            "when blocks go there: through, as soon as they are on the host; evict, when they leave it",
            Choice(get_args(Write)),
            default="through",
        ),
    ]


COMMAND = command(
    "replay",
    text=f"{TEXT}\n\n{TRACE_TEXT}",
    examples=EXAMPLES,
    params=[
        *input_options(),
        *machine_options(),
        option("--host", f'host memory, or "{NONE}"; {SIZES}', default="256GiB", metavar="SIZE"),
        option(
            "--policy",
            f"which block leaves the host first: {', '.join(POLICIES)}",
            Choice(tuple(POLICIES)),
            default="prefix",
        ),
        admission_option(),
        option("--mode", "eager or lazy", Choice(get_args(Mode)), default="eager"),
        *(found for name, what in TIERS.items() for found in _tier_options(name, what)),
        option(
            "--servers",
            "servers that take turns with the requests, each with its own GPUs and host memory",
            Whole(1),
            default=1,
        ),
        flag("--json", "print one JSON object instead of tables"),
        option("--plot", "draw shares over time and times to first token", File(), metavar="FILE.png"),
    ],
    run=run,
)

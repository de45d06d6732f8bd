"""Options that the commands share, and where their requests come from."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvtide.core.config import Admission
from kvtide.errors import ConfigError
from kvtide.options import parse_choice, parse_count, parse_size
from kvtide.traces.consistency import consistent
from kvtide.traces.cost import PRESETS, CostModel, preset
from kvtide.traces.geometry import DEFAULT_BYTES_PER_TOKEN, bytes_per_token
from kvtide.traces.reader import open_trace
from kvtide.traces.readers import FORMATS
from kvtide.traces.record import TraceRequest
from kvtide.traces.tokenizers import BYTES
from kvtide.traces.workloads import WORKLOADS, Workload

SKIPPED_SHOWN = 5
"""So many skipped lines are named one by one."""


class Input(NamedTuple):
    """Requests, and what to call them."""

    requests: Iterable[TraceRequest]
    block_tokens: int
    title: str


class Advance(Protocol):
    """Told how far a run is."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show it."""


def tell(text: str) -> None:
    """Say something that is not a result."""
    sys.stderr.write(f"{text}\n")


def put(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{text}\n")


def parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, text: str, examples: str
) -> argparse.ArgumentParser:
    """Add a subcommand."""
    return commands.add_parser(name, help=summary, description=text, epilog="examples:\n" + examples)


def add_input(command: argparse.ArgumentParser) -> None:
    """Add what says where requests come from."""
    command.add_argument("trace", nargs="?", metavar="TRACE", help="a file; without one, a synthetic workload is used")
    formats = f"auto, {', '.join(FORMATS)} (default: auto)"
    command.add_argument("--format", default="auto", metavar="NAME", help=f"format of the trace: {formats}")
    blocks = "tokens that one hash stands for (default: 512 for mooncake, 16 for others)"
    command.add_argument("--block-tokens", type=number, metavar="N", help=blocks)
    tokenizer = f"for texts: {BYTES}, a tokenizer.json, or a model on the Hugging Face hub (default: {BYTES})"
    command.add_argument("--tokenizer", default=BYTES, metavar="NAME", help=tokenizer)
    command.add_argument("--strict", action="store_true", help="a line that cannot be read is an error")
    add_workload(command)


def add_workload(command: argparse.ArgumentParser) -> None:
    """Add what chooses a synthetic workload."""
    default = Workload()
    names = f"synthetic workload: {', '.join(WORKLOADS)} (default: {default.name})"
    command.add_argument("--workload", default=default.name, metavar="NAME", help=names)
    command.add_argument(
        "--requests",
        type=number,
        default=default.requests,
        metavar="N",
        help=f"its length (default: {default.requests})",
    )
    command.add_argument(
        "--seed", type=number, default=default.seed, metavar="N", help=f"its seed (default: {default.seed})"
    )


def add_machine(command: argparse.ArgumentParser) -> None:
    """Add what describes the model and the machine."""
    tokens = f"bytes of KV per token (default: {DEFAULT_BYTES_PER_TOKEN}, Llama-3.1-8B)"
    command.add_argument("--bytes-per-token", metavar="SIZE", help=tokens)
    command.add_argument("--model-config", metavar="FILE", help="take that from a model's config.json")
    gpus = f"whose rates are used: {', '.join(PRESETS)}; the report says where they come from (default: h200)"
    command.add_argument("--gpu", default="h200", metavar="NAME", help=gpus)
    command.add_argument(
        "--prefill", type=float, metavar="N", help="prefill tokens per second, instead of the preset's"
    )
    command.add_argument("--decode", type=float, metavar="S", help="seconds per output token, instead of the preset's")
    command.add_argument(
        "--link", metavar="SIZE", help='bytes per second each way, such as "25GB", instead of the preset\'s'
    )


def add_admission(command: argparse.ArgumentParser) -> None:
    """Add what chooses the blocks that are stored."""
    admission = "which blocks are stored: all, or second-use: those that are asked for a second time (default: all)"
    command.add_argument("--admission", default="all", metavar="NAME", help=admission)


def admission_of(args: argparse.Namespace) -> Admission:
    """Return which blocks are to be stored."""
    return parse_choice("--admission", args.admission, get_args(Admission))


def workload_of(args: argparse.Namespace) -> Workload:
    """Return the synthetic workload that was chosen."""
    block_tokens = Workload().block_tokens if args.block_tokens is None else args.block_tokens
    return Workload(args.workload, args.requests, args.seed, block_tokens)


def input_of(args: argparse.Namespace) -> Input:
    """Open the trace, or make the workload and say so."""
    if args.trace is None:
        workload = workload_of(args)
        title = f"synthetic workload {workload.name!r}, {workload.requests:,} requests, seed {workload.seed}"
        tell(f"kvtide: no trace was given: this is a {title}")
        return Input(workload, workload.block_tokens, title)
    if args.block_tokens is not None:
        parse_count("--block-tokens", args.block_tokens)
    trace = open_trace(
        args.trace,
        trace_format=args.format,
        block_tokens=args.block_tokens,
        tokenizer_name=args.tokenizer,
        strict=args.strict,
        on_skip=_Skipped(),
    )
    return Input(consistent(trace), trace.block_tokens, trace.path.name)


class _Skipped:
    """Tells about skipped lines, the first few one by one."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, line_number: int, why: str) -> None:
        self._count += 1
        if self._count <= SKIPPED_SHOWN:
            tell(f"kvtide: line {line_number} is skipped: {why}")
        if self._count == SKIPPED_SHOWN:
            tell("kvtide: further lines that cannot be read are skipped in silence (see --strict)")


def bytes_per_token_of(args: argparse.Namespace) -> int:
    """Return the bytes of KV per token."""
    if args.model_config is not None:
        if args.bytes_per_token is not None:
            raise ConfigError("--bytes-per-token", args.bytes_per_token, "not to be used with --model-config")
        return bytes_per_token(args.model_config)
    return DEFAULT_BYTES_PER_TOKEN if args.bytes_per_token is None else size("--bytes-per-token", args.bytes_per_token)


def cost_of(args: argparse.Namespace) -> CostModel:
    """Return the preset, with what was given instead."""
    cost = preset(args.gpu)
    changes: dict[str, float] = {}
    if args.prefill is not None:
        changes["prefill_tokens_per_s"] = args.prefill
    if args.decode is not None:
        changes["decode_s_per_token"] = args.decode
    if args.link is not None:
        changes["load_bytes_per_s"] = changes["store_bytes_per_s"] = size("--link", args.link)
    if not changes:
        return cost
    return dataclasses.replace(cost, **changes, source=f"{cost.source}; {', '.join(changes)} as given")


def size(option: str, text: str) -> int:
    """Read a size that was given as an option."""
    return parse_size(option, int(text) if text.isascii() and text.isdigit() else text)


def number(text: str) -> int | str:
    """Return a whole number, or the text as it is, to be refused by whoever needs it."""
    try:
        return int(text)
    except ValueError:
        return text


@contextmanager
def progress(label: str) -> Iterator[Advance]:
    """Show a bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _say_nothing
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


def _say_nothing(done: int, total: int | None = None) -> None:
    """Show nothing."""

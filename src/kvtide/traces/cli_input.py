"""Options that say where requests come from, shared by the commands."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.traces.cli_common import number, tell
from kvtide.traces.consistency import consistent
from kvtide.traces.reader import Trace, open_trace
from kvtide.traces.readers import FORMATS, REQUESTS_PER_S
from kvtide.traces.record import TraceRequest
from kvtide.traces.tokenizers import BYTES
from kvtide.traces.workloads import WORKLOADS, Workload

SKIPPED_SHOWN = 5
"""So many skipped lines are named one by one."""


@dataclass(frozen=True, slots=True)
class Input:
    """Requests, and what to call them."""

    requests: Iterable[TraceRequest]
    block_tokens: int
    title: str
    trace: Trace | None = None
    """Where they are read from, if they are not made."""

    def as_json(self) -> dict[str, object]:
        """Return what was read and what was not, once all of it has been read."""
        skipped = self.trace.skipped_by if self.trace is not None else Counter[str]()
        return {"trace": self.title, "skipped_lines": sum(skipped.values()), "skipped_by": dict(skipped)}

    def tell_missing(self) -> None:
        """Say what could not be read, once all of it has been read."""
        trace = self.trace
        if trace is not None and trace.skipped:
            whys = ", ".join(f"{why}: {count:,}" for why, count in trace.skipped_by.most_common())
            tell(f"kvtide: {trace.skipped:,} lines were skipped and {trace.read:,} requests read ({whys})")
        if trace is not None and trace.untimed:
            rate = trace.requests_per_s
            tell(f"kvtide: {trace.untimed:,} requests have no time: {rate:g} per second are taken to come (see --rate)")


def add_input(command: argparse.ArgumentParser) -> None:
    """Add what says where requests come from."""
    file = 'a file, packed with gzip or not, or "-" for standard input; without one, a synthetic workload is used'
    command.add_argument("trace", nargs="?", metavar="TRACE", help=file)
    formats = f"auto, {', '.join(FORMATS)} (default: auto)"
    command.add_argument("--format", default="auto", metavar="NAME", help=f"format of the trace: {formats}")
    blocks = "tokens that one hash stands for (default: 512 for mooncake, 16 for others)"
    command.add_argument("--block-tokens", type=number, metavar="N", help=blocks)
    tokenizer = f"for texts: {BYTES}, a tokenizer.json, or a model on the Hugging Face hub (default: {BYTES})"
    command.add_argument("--tokenizer", default=BYTES, metavar="NAME", help=tokenizer)
    rate = f"requests per second of a trace without times, such as a batch file (default: {REQUESTS_PER_S:g})"
    command.add_argument("--rate", type=float, default=REQUESTS_PER_S, metavar="N", help=rate)
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
    if args.block_tokens is not None and (not isinstance(args.block_tokens, int) or args.block_tokens < 1):
        raise ConfigError("--block-tokens", args.block_tokens, "a whole number of at least 1")
    if not 0 < args.rate < float("inf"):
        raise ConfigError("--rate", args.rate, "a number above 0")
    trace = open_trace(
        args.trace,
        trace_format=args.format,
        block_tokens=args.block_tokens,
        tokenizer_name=args.tokenizer,
        strict=args.strict,
        on_skip=_Skipped(),
        requests_per_s=args.rate,
    )
    name = trace.lines.name
    return Input(consistent(trace), trace.block_tokens, Path(name).name if Path(name).is_file() else name, trace)


class _Skipped:
    """Tells about skipped lines, the first few one by one."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, line_number: int, why: str) -> None:
        self._count += 1
        if self._count <= SKIPPED_SHOWN:
            tell(f"kvtide: line {line_number} is skipped: {why}")
        if self._count == SKIPPED_SHOWN:
            tell("kvtide: further lines that cannot be read are counted, and not named (see --strict)")

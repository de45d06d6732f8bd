"""Options that say where requests come from, shared by the commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from kvtide.commands import Arguments, Choice, File, Real, Whole, argument, flag, option, refuse_written
from kvtide.output import tell
from kvtide.traces.consistency import consistent
from kvtide.traces.reader import Trace, open_trace
from kvtide.traces.readers import FORMATS, REQUESTS_PER_S
from kvtide.traces.record import TraceRequest
from kvtide.traces.tokenizers import BYTES
from kvtide.traces.workloads import WORKLOADS, Workload
from kvtide.units import how_many

TRACE_TEXT = """\
TRACE is a file, packed with gzip or not, or "-" for standard input; without one, a synthetic workload is used."""

SKIPPED_SHOWN = 5
"""So many skipped lines are named one by one."""


_OF_TRACES = ("format", "tokenizer", "rate", "strict")
_OF_WORKLOADS = ("workload", "requests", "seed")


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
            skipped = how_many(trace.skipped, "line")
            tell(f"kvtide: skipped {skipped} and read {how_many(trace.read, 'request')} ({whys})")
        if trace is not None and trace.untimed:
            rate = trace.requests_per_s
            untimed = how_many(trace.untimed, "request")
            tell(f"kvtide: {untimed} without a time: {rate:g} per second are taken to come (see --rate)")


def input_options() -> list[click.Parameter]:
    """Return what says where requests come from."""
    return [
        argument("TRACE"),
        option(
            "--format", f"format of the trace: auto, {', '.join(FORMATS)}", Choice(("auto", *FORMATS)), default="auto"
        ),
        option(
            "--block-tokens", "tokens that one hash stands for (default: 512 for mooncake, 16 for others)", Whole(1)
        ),
        option(
            "--tokenizer",
            f"for texts: {BYTES}, a tokenizer.json, or a model on the Hugging Face hub",
            File(),
            default=BYTES,
            metavar="NAME",
        ),
        option(
            "--rate",
            "requests per second of a trace without times, such as a batch file",
            Real(),
            default=REQUESTS_PER_S,
        ),
        flag("--strict", "a line that cannot be read is an error"),
        *workload_options(),
    ]


def workload_options() -> list[click.Option]:
    """Return what chooses a synthetic workload."""
    default = Workload()
    names = f"synthetic workload: {', '.join(WORKLOADS)}"
    return [
        option("--workload", names, Choice(tuple(WORKLOADS)), default=default.name),
        option("--requests", "its length", Whole(1), default=default.requests),
        option("--seed", "its seed", Whole(), default=default.seed),
    ]


def workload_of(args: Arguments) -> Workload:
    """Return the synthetic workload that was chosen."""
    block_tokens = Workload().block_tokens if args.block_tokens is None else args.block_tokens
    return Workload(args.workload, args.requests, args.seed, block_tokens)


def input_of(args: Arguments) -> Input:
    """Open the trace, or make the workload and say so."""
    if args.trace is None:
        refuse_written(_OF_TRACES, "to be used with a TRACE")
        workload = workload_of(args)
        title = f"synthetic workload {workload.name!r}, {how_many(workload.requests, 'request')}, seed {workload.seed}"
        tell(f"kvtide: no trace was given: this is a {title}")
        return Input(workload, workload.block_tokens, title)
    refuse_written(_OF_WORKLOADS, "to be used without a TRACE: a synthetic workload has it")
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

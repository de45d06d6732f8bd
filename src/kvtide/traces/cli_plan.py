"""`kvtide plan`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from kvtide.core import POLICIES
from kvtide.options import parse_choice
from kvtide.traces.cli_common import (
    Input,
    add_admission,
    add_input,
    add_machine,
    admission_of,
    bytes_per_token_of,
    cost_of,
    input_of,
    parser,
    progress,
    put,
    size,
)
from kvtide.traces.plan import PlanConfig, PlanResult, make_plan
from kvtide.traces.plan_page import plan_page
from kvtide.traces.plan_report import as_json, conclusion, plan_table
from kvtide.traces.plots import draw_plan, figure
from kvtide.traces.sampling import SAMPLE_BLOCKS
from kvtide.traces.writing import check_writable, write_whole

TEXT = """\
How much host memory is worth buying for this traffic, and which policy makes the most of it. LRU is exact at every
size, from one pass over the trace; other policies are estimated from samples of the conversations, with their error."""

EXAMPLES = """\
  kvtide plan                                                  a synthetic workload
  kvtide plan trace.jsonl --html plan.html --plot plan.png     a page with curves to point at, and a picture
  kvtide plan trace.jsonl --model-config config.json --sizes 64GiB,128GiB,256GiB,512GiB"""

_EVERYTHING = 1 << 62


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the subcommand known."""
    command = parser(commands, "plan", "hit ratio and time to first token against host memory", TEXT, EXAMPLES)
    add_input(command)
    add_machine(command)
    names = "lru,prefix,arc,s3fifo,forecast"
    command.add_argument("--policies", default=names, metavar="A,B", help=f"policies to compare (default: {names})")
    add_admission(command)
    command.add_argument("--sizes", metavar="A,B", help="sizes of host memory (default: eight, up to where all fits)")
    command.add_argument("--exact", action="store_true", help="run policies on the whole trace instead of samples")
    command.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    command.add_argument("--plot", metavar="FILE.png", help="draw the curves")
    command.add_argument("--html", metavar="FILE.html", help="write a page with the curves that needs nothing else")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan for a trace."""
    if args.plot is not None:
        check_writable("--plot", args.plot, (".png",))
        figure(1, 1)  # fails now, not after the run, if it cannot be drawn
    if args.html is not None:
        check_writable("--html", args.html, (".html", ".htm"))
    source = input_of(args)
    config = _config(args, source.block_tokens)
    with progress("points") as advance:
        plan = make_plan(source.requests, config, advance)
    _write(args, plan, source, config)
    if args.json:
        put(json.dumps({"trace": source.title, **as_json(plan)}, indent=2))
        return 0
    out = Console()
    out.print(plan_table(plan))
    out.print(conclusion(plan), highlight=False, soft_wrap=True)
    return 0


def _config(args: argparse.Namespace, block_tokens: int) -> PlanConfig:
    sizes = sorted({size("--sizes", text.strip()) for text in args.sizes.split(",")}) if args.sizes else []
    policies = [parse_choice("--policies", name.strip(), tuple(POLICIES)) for name in args.policies.split(",")]
    return PlanConfig(
        block_tokens=block_tokens,
        bytes_per_token=bytes_per_token_of(args),
        policies=list(dict.fromkeys(policies)),
        sizes=sizes,
        cost=cost_of(args),
        admission=admission_of(args),
        sample_blocks=_EVERYTHING if args.exact else SAMPLE_BLOCKS,
    )


def _write(args: argparse.Namespace, plan: PlanResult, source: Input, config: PlanConfig) -> None:
    title = f"Host memory for {source.title}"
    if args.plot is not None:
        write_whole(args.plot, lambda path: draw_plan(plan, title, path))
    if args.html is not None:
        exact = "lru is exact; " if config.admission == "all" else f"Admission: {config.admission}. "
        notes = (
            f"{plan.requests:,} requests, {plan.prompt_tokens:,} prompt tokens, {config.bytes_per_token:,} bytes of KV "
            f"per token. Time to first token: mean, without queues; {config.cost.source}. {exact}± is the standard "
            f"error of samples."
        )
        page = plan_page(plan, title, conclusion(plan), notes)
        write_whole(args.html, lambda path: _write_text(path, page))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

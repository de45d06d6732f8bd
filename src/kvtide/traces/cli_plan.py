"""`kvtide plan`."""

from __future__ import annotations

import json

from kvtide.commands import SIZES, Arguments, File, Real, command, exit_codes, flag, option
from kvtide.core import POLICIES
from kvtide.errors import ConfigError
from kvtide.options import parse_choice
from kvtide.output import Output, put, tell
from kvtide.progress import progress
from kvtide.traces.assumptions import assumption_lines, assumptions
from kvtide.traces.cli_common import admission_option, size
from kvtide.traces.cli_input import TRACE_TEXT, Input, input_of, input_options
from kvtide.traces.cli_machine import machine_of, machine_options
from kvtide.traces.layer import Layer
from kvtide.traces.machine import Machine
from kvtide.traces.measured import Measured, measure_machine
from kvtide.traces.plan import PlanConfig, PlanResult, make_plan
from kvtide.traces.plan_page import plan_page
from kvtide.traces.plan_report import as_json, conclusion, legend, plan_table
from kvtide.traces.plots import draw_plan, figure
from kvtide.traces.prices import GIB_HOUR, GIB_HOUR_HOW, GPU_HOUR_HOW, Prices
from kvtide.traces.rates import Sourced
from kvtide.traces.sampling import SAMPLE_BLOCKS
from kvtide.traces.writing import check_writable, write_whole
from kvtide.units import how_many

TEXT = """\
How much host memory is worth buying for this traffic, beside the prefix cache that the device has anyway: what it
adds, what that saves and costs, and how sure that is. What is recommended was replayed with the real core. The curves
of lru and prefix come from the whole trace; other policies are run on samples of the conversations, with an error."""

EXAMPLES = """\
  kvtide plan                                                  a synthetic workload
  kvtide plan trace.jsonl --gpu H100 --model-config config.json
  kvtide plan trace.jsonl.gz --device 40GiB --gpu-hour 2.5 --gib-hour 0.003
  kvtide plan trace.jsonl --html plan.html --plot plan.png     a page with curves to point at, and a picture
  zcat trace.jsonl.gz | kvtide plan - --device none --sizes 64GiB,128GiB,256GiB""" + exit_codes()


def run(args: Arguments) -> int:
    """Plan for a trace."""
    if args.plot is not None:
        check_writable("--plot", args.plot, (".png",))
        figure(1, 1)  # fails now, not after the run, if it cannot be drawn
    if args.html is not None:
        check_writable("--html", args.html, (".html", ".htm"))
    machine = machine_of(args, _measure if args.measure else None)
    prices = _prices(args, machine)
    source = input_of(args)
    config = _config(args, machine, prices, source.block_tokens)
    with progress() as advance:
        plan = make_plan(source.requests, config, advance)
    source.tell_missing()
    _tell_missing(plan, source)
    taken = {**assumptions(machine), **{f"{name}_dollars": price for name, price in prices.items()}}
    _write(args, plan, source, taken)
    if args.json:
        sources = {name: rate.as_json() for name, rate in taken.items()}
        put(json.dumps({**source.as_json(), **as_json(plan), "rates": sources}, indent=2))
        return 0
    out = Output()
    out.table(plan_table(plan))
    out.print(legend(plan), highlight=False, soft_wrap=True)
    out.print(conclusion(plan), highlight=False, soft_wrap=True)
    for line in assumption_lines(taken):
        out.print(line, highlight=False, soft_wrap=True)
    return 0


def _measure(layer: Layer | None) -> Measured:
    measured = measure_machine(layer)
    tell(f"kvtide: {measured.text}")
    return measured


def _prices(args: Arguments, machine: Machine) -> dict[str, Sourced]:
    """Return what an hour costs, with where that comes from."""
    gpu = machine.gpu
    usual = {
        "gpu_hour": (gpu.dollars_per_hour, f"{gpu.name}, {GPU_HOUR_HOW}"),
        "gib_hour": (GIB_HOUR, GIB_HOUR_HOW),
    }
    prices = {}
    for name, (value, how) in usual.items():
        given = getattr(args, name)
        if given is not None:
            prices[name] = Sourced(given, "given", "")
        elif value is not None:
            prices[name] = Sourced(value, "default", how)
        else:
            raise ConfigError(
                "--gpu-hour", given, f"dollars for an hour of one {gpu.name}, whose price is not known here"
            )
    return prices


def _config(args: Arguments, machine: Machine, prices: dict[str, Sourced], block_tokens: int) -> PlanConfig:
    given = [] if args.sizes is None else args.sizes.split(",")
    sizes = sorted({size("--sizes", text.strip()) for text in given})
    policies = [parse_choice("--policies", name.strip(), tuple(POLICIES)) for name in args.policies.split(",")]
    machine.device_blocks(block_tokens)  # refuses one without room for a block
    return PlanConfig(
        block_tokens=block_tokens,
        bytes_per_token=machine.host_bytes_per_token,
        device_bytes=machine.device_tokens * machine.host_bytes_per_token,  # as if blocks were as large as on the host
        prefix_cache=machine.prefix_cache,
        policies=list(dict.fromkeys(policies)),
        sizes=sizes,
        cost=machine.cost,
        gpus=machine.gpus,
        prices=Prices(prices["gpu_hour"].value, prices["gib_hour"].value),
        admission=args.admission,
        sample_blocks=None if args.exact else SAMPLE_BLOCKS,
    )


def _tell_missing(plan: PlanResult, source: Input) -> None:
    if plan.too_large:
        tell(f"kvtide: left out {how_many(plan.too_large, 'request')}, larger than the device")
    if plan.block_tokens != source.block_tokens:
        joined = f"planned in blocks of {plan.block_tokens} tokens instead of {source.block_tokens}"
        tell(f"kvtide: the trace is long: {joined} (see --exact)")


def _write(args: Arguments, plan: PlanResult, source: Input, taken: dict[str, Sourced]) -> None:
    title = f"Host memory for {source.title}"
    if args.plot is not None:
        write_whole(args.plot, lambda path: draw_plan(plan, title, path))
    if args.html is not None:
        page = plan_page(plan, title, taken, args.admission)
        write_whole(args.html, lambda path: path.write_text(page, encoding="utf-8"))


COMMAND = command(
    "plan",
    text=f"{TEXT}\n\n{TRACE_TEXT}",
    examples=EXAMPLES,
    params=[
        *input_options(),
        *machine_options(),
        flag("--measure", "measure this machine: copies in host memory, and the GPU's link, memory and prefill"),
        option("--gpu-hour", f"dollars for an hour of one GPU (default: by the GPU, {GPU_HOUR_HOW})", Real(0)),
        option(
            "--gib-hour",
            f"dollars for an hour of one GiB of host memory (default: {GIB_HOUR:g}, {GIB_HOUR_HOW})",
            Real(0),
        ),
        option("--policies", "policies to compare", default=",".join(POLICIES), metavar="A,B"),
        admission_option(),
        option(
            "--sizes",
            f"sizes of host memory to choose from (default: 1GiB to 16TiB, each twice the one before); {SIZES}",
            metavar="A,B",
        ),
        flag("--exact", "run policies on the whole trace instead of samples"),
        flag("--json", "print one JSON object instead of the table"),
        option("--plot", "draw the curves", File(), metavar="FILE.png"),
        option("--html", "write a page with the curves that needs nothing else", File(), metavar="FILE.html"),
    ],
    run=run,
)

"""Prefix-hit ratio of every eviction policy on a trace, at several sizes, with Belady's bound beside it.

    python benchmarks/policies.py TRACE [--json] [--plot FILE.png]
    python benchmarks/policies.py --small [--json]      a synthetic workload: shows that it runs

The prefix-hit ratio is the share of the trace's block hashes that hit, where one hits only if all before it in the
same prompt hit. Sizes are percentages of the unique blocks. Microseconds are those spent in the policy per block.
"""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kvtide.core.eviction import POLICIES
from kvtide.core.groups import Key
from kvtide.traces import open_trace
from kvtide.traces.belady import belady_hits
from kvtide.traces.consistency import consistent
from kvtide.traces.plots import COLOURS, figure
from kvtide.traces.policy_run import as_keys, run_policy
from kvtide.traces.workloads import Workload
from kvtide.traces.writing import check_writable, write_whole

PERCENTS = (1, 2, 5, 10, 20, 40)
BEST = "forecast"
WITH_ADMISSION = ("prefix", "forecast")
"""Policies that are also measured with the admission that keeps blocks out until they are asked for twice."""


@dataclass
class Row:
    """One policy at one size."""

    percent: int
    policy: str
    hit: float
    us_per_op: float | None
    best: bool


def measure(prompts: list[list[Key]], unique_blocks: int, percents: tuple[int, ...]) -> list[Row]:
    uses = sum(map(len, prompts))
    variants = [(name, name, False) for name in POLICIES]
    variants += [(f"{name}+admission", name, True) for name in WITH_ADMISSION]
    rows = []
    for percent in percents:
        slots = max(1, unique_blocks * percent // 100)
        for label, name, admission in variants:
            gc.collect()
            result = run_policy(name, prompts, slots, admission=admission)
            rows.append(Row(percent, label, round(result.hit_ratio, 4), round(result.us_per_op, 2), label == BEST))
        rows.append(Row(percent, "belady", round(belady_hits(prompts, slots) / uses, 4), None, False))
    return rows


def print_table(rows: list[Row]) -> None:
    labels = list(dict.fromkeys(row.policy for row in rows))
    print("capacity " + " ".join(f"{label:>16}" for label in labels))
    for percent in dict.fromkeys(row.percent for row in rows):
        cells = [f"{row.hit:.4f}" for row in rows if row.percent == percent]
        print(f"{percent:>7}% " + " ".join(f"{cell:>16}" for cell in cells))
    print("µs/block " + " ".join(f"{mean_us(rows, label):>16}" for label in labels))


def draw(rows: list[Row], path: Path) -> None:
    drawing, axis = figure(9, 5)
    for colour, label in zip(COLOURS * 2, dict.fromkeys(row.policy for row in rows), strict=False):
        mine = [row for row in rows if row.policy == label]
        style = {"best": "o-", "belady": "k--"}.get("best" if mine[0].best else label, "o:" if "+" in label else "o-")
        options = {} if label == "belady" else {"color": colour}
        width = 2.5 if mine[0].best else 1.2
        percents, hits = [row.percent for row in mine], [100 * row.hit for row in mine]
        axis.plot(percents, hits, style, label=label, linewidth=width, markersize=4, **options)
    axis.set_xscale("log")
    percents = sorted({row.percent for row in rows})
    axis.set_xticks(percents, [f"{percent}%" for percent in percents])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set(xlabel="capacity, share of the unique blocks", ylabel="prefix-hit ratio, %")
    axis.legend(frameon=False)
    drawing.savefig(path, dpi=110, format="png")


def mean_us(rows: list[Row], policy: str) -> str:
    times = [row.us_per_op for row in rows if row.policy == policy and row.us_per_op is not None]
    return f"{sum(times) / len(times):.2f}" if times else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="a trace that kvtide can read")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the curves (needs matplotlib)")
    parser.add_argument("--small", action="store_true", help="a short synthetic workload, two sizes")
    args = parser.parse_args()
    if args.trace is None and not args.small:
        parser.error("TRACE is missing (or use --small)")
    if args.plot:
        check_writable("--plot", args.plot, (".png",))
        figure(1, 1)  # fails now if it cannot be drawn
    requests = Workload(requests=300) if args.small else open_trace(args.trace)
    prompts = [as_keys(request.hashes) for request in consistent(requests)]
    unique_blocks = len({key for keys in prompts for key in keys})
    rows = measure(prompts, unique_blocks, (5, 20) if args.small else PERCENTS)
    if args.plot:
        write_whole(args.plot, lambda path: draw(rows, path))
    if args.json:
        print(json.dumps({"unique_blocks": unique_blocks, "rows": [_plain(row) for row in rows]}))
    else:
        print(f"{len(prompts):,} prompts, {sum(map(len, prompts)):,} blocks, {unique_blocks:,} of them unique")
        print_table(rows)


def _plain(row: Row) -> dict[str, object]:
    plain = asdict(row)
    if not row.best:
        del plain["best"]
    return plain


if __name__ == "__main__":
    main()

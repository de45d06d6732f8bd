"""Shows a comparison: as a table with a sentence or two, or as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from rich import box
from rich.table import Table

from kvtide.demo.compare import REFERENCE, Comparison, RunResult
from kvtide.output import Output
from kvtide.units import how_many

WORTH_A_WORD = 1.05
"""A ratio of times below this is noise."""


def show(comparison: Comparison, *, wants_json: bool) -> int:
    """Print the comparison; return the exit code, which is 1 if outputs differ."""
    if wants_json:
        print(json.dumps(as_json(comparison), indent=2))
    else:
        out = Output()
        out.table(table(comparison))
        out.print(sentences(comparison), highlight=False, soft_wrap=not out.is_terminal)
    if comparison.identical_outputs:
        return 0
    print(f"kvtide: error: {about_outputs(comparison)}", file=sys.stderr)
    return 1


def as_json(comparison: Comparison) -> dict[str, object]:
    """Return the comparison as one object: the runs by name, and whether their outputs are identical."""
    runs: dict[str, object] = {run: _numbers(result) for run, result in comparison.results.items()}
    return {
        **runs,
        "identical_outputs": comparison.identical_outputs,
        "settings": asdict(comparison.settings),
    }


def _numbers(result: RunResult) -> dict[str, object]:
    return {
        "prefill_tokens": result.prefill_tokens,
        "loaded_tokens": result.loaded_tokens,
        "hit_ratio": round(result.hit_ratio, 4),
        "ttft_ms_p50": round(result.ttft_ms_at(50), 3),
        "ttft_ms_p95": round(result.ttft_ms_at(95), 3),
        "copy_s": round(result.copy_s, 4),
        "stored_bytes": result.stored_bytes,
        "wall_s": round(result.wall_s, 3),
    }


def table(comparison: Comparison) -> Table:
    """Return the comparison as a table, one row for each run."""
    result = Table(box=box.SIMPLE_HEAD, title=_title(comparison), title_justify="left", title_style="bold")
    result.add_column("\n")
    for heading in (
        "prefill\ntokens",
        "tokens\nloaded",
        "hit\nratio",
        "TTFT\np50 ms",
        "TTFT\np95 ms",
        "stored\nMiB" if comparison.settings.packing else "copies\ns",
        "outputs\nidentical",
    ):
        result.add_column(heading, justify="right")
    for run in comparison.results:
        result.add_row(run, *_cells(comparison, run))
    return result


def _title(comparison: Comparison) -> str:
    settings = comparison.settings
    conversations = how_many(settings.conversations, "conversation")
    return (
        f"{conversations} of {settings.turns} turns, {settings.concurrency} at a time. "
        f"All their KV: {settings.unlimited_blocks} blocks;\nthe device has {settings.device_blocks}. "
        "TTFT (time to first token) is that of follow-up turns."
    )


def _cells(comparison: Comparison, run: str) -> list[str]:
    result = comparison.results[run]
    identical = "yes" if comparison.first_difference(run) is None else "[bold red]NO[/]"
    return [
        f"{result.prefill_tokens:,}",
        f"{result.loaded_tokens:,}",
        f"{result.hit_ratio:.0%}",
        f"{result.ttft_ms_at(50):.1f}",
        f"{result.ttft_ms_at(95):.1f}",
        f"{result.stored_bytes / 2**20:.1f}" if comparison.settings.packing else f"{result.copy_s:.2f}",
        "reference" if run == REFERENCE else identical,
    ]


def sentences(comparison: Comparison) -> str:
    """Say what happened, for those who do not read tables."""
    if "eager" in comparison.results:
        about = _about_time
    else:
        about = _about_packing if comparison.settings.packing else _about_sharing
    return f"{about(comparison)}\n{about_outputs(comparison)}"


def _about_sharing(comparison: Comparison) -> str:
    """Say what engines found that others have computed."""
    first, *others = (result for run, result in comparison.results.items() if run not in (REFERENCE, "none"))
    if not any(each.loaded_tokens for each in others):
        return (
            "Nothing was loaded: engines found nothing at the node. A line above says so if it has no room for them; "
            "`kvtide node status` shows what it has."
        )
    found = [f"the {each.run} one {each.prefill_tokens:,} and loaded {each.loaded_tokens:,}" for each in others]
    return (
        f"The {first.run} engine computed {first.prefill_tokens:,} prompt tokens, {', '.join(found)}: what one engine "
        "has computed the node keeps for all, also when that engine is gone."
    )


def _about_packing(comparison: Comparison) -> str:
    """Say what packing brought."""
    plain, packed = (comparison.results[run] for run in ("plain", "packed"))
    return (
        f"Out of the same host memory came {packed.loaded_tokens:,} prompt tokens with blocks packed, and "
        f"{plain.loaded_tokens:,} with blocks as they are."
    )


def _about_time(comparison: Comparison) -> str:
    none, eager = comparison.results["none"], comparison.results["eager"]
    if not eager.loaded_tokens:
        return (
            "Nothing was loaded: the device pool held what was needed, or the host was too small to keep it "
            "(see --device-blocks and --host)."
        )
    before_ms, after_ms = none.ttft_ms_at(50), eager.ttft_ms_at(50)
    times = f"{after_ms:.0f} ms instead of {before_ms:.0f} ms at the median"
    loaded = f"{eager.loaded_tokens:,} prompt tokens came back from host memory instead of being computed again"
    if before_ms < after_ms * WORTH_A_WORD:
        return f"With kvtide a follow-up turn starts no sooner ({times}), although {loaded}."
    return f"With kvtide a follow-up turn starts {before_ms / after_ms:.1f} times sooner ({times}): {loaded}."


def about_outputs(comparison: Comparison) -> str:
    """Say whether offloading changed any output, and where first."""
    found = ((run, comparison.first_difference(run)) for run in comparison.results)
    different = [f"{run}: {turn.request_id}" for run, turn in found if turn is not None]
    if different:
        return "OUTPUTS DIFFER from the run with an unlimited device pool, first in " + "; ".join(different) + "."
    return "Every output token is the same as with an unlimited device pool."

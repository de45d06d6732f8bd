"""`kvtide trace make` and `kvtide trace stats`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.table import Table

from kvtide.commands import Arguments, Whole, argument, command, exit_codes, flag, group, option
from kvtide.output import Output, put, tell
from kvtide.progress import counted, progress
from kvtide.traces.cli_input import TRACE_TEXT, input_of, input_options, workload_of, workload_options
from kvtide.traces.record import TraceRequest
from kvtide.traces.stats import TraceStats, trace_stats
from kvtide.traces.writing import check_writable, write_whole
from kvtide.units import how_many, percent_text, seconds_text

SHARES = (0.1, 0.5, 0.9, 0.99)


def run_make(args: Arguments) -> int:
    """Write a synthetic workload."""
    workload = workload_of(args)
    if args.output is None:
        with progress() as advance:
            for line in _lines(counted(workload, "requests", advance)):
                put(line)
        return 0
    check_writable("OUTPUT", args.output)
    with progress() as advance:
        write_whole(args.output, lambda path: _write_lines(path, counted(workload, "requests", advance)))
    tell(f"kvtide: {how_many(workload.requests, 'request')} written to {args.output}")
    return 0


def _write_lines(path: Path, requests: Iterable[TraceRequest]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in _lines(requests))


def _lines(requests: Iterable[TraceRequest]) -> Iterator[str]:
    return (json.dumps(mooncake_record(request)) for request in requests)


def mooncake_record(request: TraceRequest) -> dict[str, object]:
    """Return a request in Mooncake's format, with its session."""
    return {
        "timestamp": round(request.time_s * 1000),
        "input_length": request.prompt_tokens,
        "output_length": request.output_tokens,
        "hash_ids": list(request.hashes),
        "session_id": request.session,
    }


def run_stats(args: Arguments) -> int:
    """Print numbers about a trace."""
    source = input_of(args)
    with progress() as advance:
        stats = trace_stats(counted(source.requests, "requests", advance))
    source.tell_missing()
    if args.json:
        put(json.dumps({**source.as_json(), **_as_json(stats)}, indent=2))
        return 0
    Output().table(_table(stats, source.block_tokens))
    return 0


def _table(stats: TraceStats, block_tokens: int) -> Table:
    table = Table(show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("requests", f"{stats.requests:,} in {seconds_text(stats.duration_s)}")
    if stats.sessions:
        table.add_row("sessions", f"{stats.sessions:,}")
    table.add_row("prompt tokens, mean", f"{stats.prompt_tokens / stats.requests:,.0f}")
    table.add_row("output tokens, mean", f"{stats.output_tokens / stats.requests:,.0f}")
    table.add_row(f"blocks of {block_tokens} tokens", f"{stats.uses:,}")
    table.add_row("different blocks", f"{stats.unique_blocks:,}")
    table.add_row("of these used once", percent_text(stats.used_once / max(1, stats.unique_blocks)))
    table.add_row("used before (what a cache can hit at most)", percent_text(stats.reuse_ratio))
    for share in SHARES:
        gap_s = stats.gap_s(share)
        if gap_s is not None:
            table.add_row(f"gap between uses, {share:.0%} of them", seconds_text(gap_s))
    for window_s, blocks in stats.working_set.items():
        table.add_row(f"different blocks within {seconds_text(window_s)}", f"{blocks:,.0f}")
    return table


def _as_json(stats: TraceStats) -> dict[str, object]:
    return {
        "requests": stats.requests,
        "sessions": stats.sessions,
        "duration_s": stats.duration_s,
        "prompt_tokens": stats.prompt_tokens,
        "output_tokens": stats.output_tokens,
        "blocks": stats.uses,
        "unique_blocks": stats.unique_blocks,
        "used_once": stats.used_once,
        "reuse_ratio": stats.reuse_ratio,
        "gap_s": {f"p{share * 100:g}": stats.gap_s(share) for share in SHARES},
        "working_set_blocks": {str(window_s): blocks for window_s, blocks in stats.working_set.items()},
    }


COMMAND = group(
    "trace",
    text="Make and look at traces.",
    examples="  kvtide trace make --workload agents --requests 1000 agents.jsonl\n  kvtide trace stats agents.jsonl"
    + exit_codes(),
    commands=[
        command(
            "make",
            summary="write a synthetic workload in Mooncake's format",
            text="Write a synthetic workload in Mooncake's format, to a file or standard output.",
            examples="  kvtide trace make --workload agents --requests 1000 agents.jsonl" + exit_codes(),
            params=[
                argument("OUTPUT"),
                option("--block-tokens", "tokens that one hash stands for (default: 512)", Whole(1)),
                *workload_options(),
            ],
            run=run_make,
        ),
        command(
            "stats",
            summary="reuse, gaps between uses, working set",
            text=f"Say how much of a trace is used again, after how long, and how much is in use.\n\n{TRACE_TEXT}",
            examples="  kvtide trace stats agents.jsonl\n  kvtide trace stats --workload chats --json" + exit_codes(),
            params=[*input_options(), flag("--json", "print one JSON object instead of tables")],
            run=run_stats,
        ),
    ],
)

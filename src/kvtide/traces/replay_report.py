"""A replay as tables and JSON."""

from __future__ import annotations

from rich.table import Table

from kvtide.traces.replay_result import ReplayResult
from kvtide.units import how_many, percent_text, seconds_text, size_text

QUANTILES = (0.5, 0.9, 0.99)
_WHY = {
    "never_seen": "never seen before",
    "evicted": "evicted by then",
    "not_admitted": "seen once, and not admitted",
    "not_fetched": "below the host, faster to compute",
    "tier_late": "below the host, and late",
    "still_storing": "still on its way to the host",
    "unfinished_block": "less than a block, or the last token",
    "last_token": "less than a block, or the last token",
}


def replay_tables(result: ReplayResult) -> list[Table]:
    """Return what people want to see."""
    return [_tokens(result), _times(result)]


def _tokens(result: ReplayResult) -> Table:
    table = Table(title="prompt tokens", title_justify="left")
    for name in ("", "tokens", "share"):
        table.add_column(name, justify="left" if not name else "right")
    for label, tokens in (
        ("on the device", result.device_tokens),
        ("loaded from the host", result.host_tokens),
        ("from below the host", result.below_tokens),
        ("computed", result.computed_tokens),
    ):
        table.add_row(label, f"{tokens:,}", percent_text(result.share(tokens)))
    for why, tokens in result.missed.most_common():
        if tokens:
            table.add_row(f"  {_WHY.get(why, why)}", f"{tokens:,}", percent_text(result.share(tokens)))
    return table


def _times(result: ReplayResult) -> Table:
    table = Table(title="time and bytes", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    for share in QUANTILES:
        table.add_row(f"time to first token, {share:.0%} of requests", seconds_text(result.ttft_at(share)))
    table.add_row("throughput", f"{_per_second(result, result.output_tokens):,.0f} output tokens/s")
    table.add_row("", f"{_per_second(result, result.requests):.2f} requests/s")
    table.add_row("loaded", size_text(result.loaded_bytes))
    table.add_row("stored", size_text(result.stored_bytes))
    if result.lookups:
        table.add_row("from below to the host", size_text(result.fetched_bytes))
        table.add_row("from the host to below", size_text(result.sunk_bytes))
    table.add_row("evicted from the host", how_many(result.evicted_blocks, "block"))
    served = max(1, len(result.ttft_s))
    table.add_row("waiting for device blocks, each request", seconds_text(result.lost_to_blocks_s / served))
    table.add_row("waiting for others' prefill, each request", seconds_text(result.lost_to_compute_s / served))
    table.add_row("queue held up by pinned blocks, in all", seconds_text(result.lost_to_pins_s))
    if result.too_large:
        table.add_row("requests larger than the device pool", f"{result.too_large:,}")
    return table


def as_json(result: ReplayResult) -> dict[str, object]:
    """Return everything as plain data."""
    return {
        "requests": result.requests,
        "too_large": result.too_large,
        "prompt_tokens": result.prompt_tokens,
        "output_tokens": result.output_tokens,
        "tokens": {
            "device": result.device_tokens,
            "host": result.host_tokens,
            "below": result.below_tokens,
            "computed": result.computed_tokens,
        },
        "hit_ratio": result.hit_ratio,
        "missed": dict(result.missed),
        "not_stored_blocks": dict(result.not_stored),
        "not_sunk_blocks": dict(result.not_sunk),
        "bytes": {
            "loaded": result.loaded_bytes,
            "stored": result.stored_bytes,
            "fetched": result.fetched_bytes,
            "sunk": result.sunk_bytes,
        },
        "lookups": result.lookups,
        "evicted_blocks": result.evicted_blocks,
        "ttft_s": {
            "mean": result.ttft_mean_s,
            **{f"p{share * 100:g}": result.ttft_at(share) for share in QUANTILES},
        },
        "duration_s": result.duration_s,
        "output_tokens_per_s": _per_second(result, result.output_tokens),
        "requests_per_s": _per_second(result, result.requests),
        "lost_s": {
            "device_blocks": result.lost_to_blocks_s,
            "compute": result.lost_to_compute_s,
            "pins": result.lost_to_pins_s,
        },
    }


def _per_second(result: ReplayResult, count: int) -> float:
    return count / result.duration_s if result.duration_s else 0.0

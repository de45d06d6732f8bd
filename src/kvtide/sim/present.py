"""Results as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.sim.batch import Caught
from kvtide.sim.options import WITH_NODE, Overrides, as_arguments
from kvtide.sim.simulation import Found
from kvtide.sim.tally import FAULTS, REASONS, Tally

COMMAND = "kvtide simulate"


def command_for(seed: int, overrides: Overrides, canary: str | None = None) -> str:
    """Return the command that shows one world."""
    let_in = f" --canary {canary}" if canary else ""
    return f"{COMMAND} --seed {seed}{let_in}{as_arguments(overrides)} --log"


def _overrides_of(found: Found, overrides: Overrides) -> Overrides:
    """Return what the world of a violation was fixed to: some seeds have a second world."""
    return {**WITH_NODE, **overrides} if found.with_node else overrides


def violation_lines(found: Found, overrides: Overrides, canary: str | None = None) -> list[str]:
    """Say what went wrong, where, and how to see it again."""
    return [
        f"{found.invariant} violated at step {found.step} of seed {found.seed}: {found.what}",
        f"  reproduce: {command_for(found.seed, _overrides_of(found, overrides), canary)}",
    ]


def tally_as_json(tally: Tally, wall_s: float, first: int, overrides: Overrides) -> dict[str, object]:
    """Return what `--seeds N --json` prints."""
    return {
        "seeds": tally.seeds,
        "first_seed": first,
        "steps": tally.steps,
        "steps_per_s": round(tally.steps / wall_s) if wall_s else 0,
        "steps_per_s_per_core": round(tally.steps / tally.busy_s) if tally.busy_s else 0,
        "violations_total": tally.violations,
        "violations": [
            {
                "seed": found.seed,
                "step": found.step,
                "invariant": found.invariant,
                "what": found.what,
                "reproduce": command_for(found.seed, _overrides_of(found, overrides)),
            }
            for found in tally.found
        ],
        "faults": {kind: tally.faults[kind] for kind in FAULTS},
        "reasons": {why: tally.reasons[why] for why in REASONS},
        "worlds": dict(sorted(tally.worlds.items())),
        "never_happened": tally.never_happened(),
    }


def tally_lines(tally: Tally, wall_s: float) -> list[str]:
    """Return the summary of many seeds, with what they covered."""
    per_core = round(tally.steps / tally.busy_s) if tally.busy_s else 0
    lines = [
        f"{tally.seeds:,} seeds, {tally.steps:,} steps in {wall_s:.1f} s ({per_core:,} steps/s per core), "
        f"{tally.violations:,} violations",
        "faults   " + _counts(tally.faults, FAULTS),
        "reasons  " + _counts(tally.reasons, REASONS),
        "worlds   " + _counts(tally.worlds, sorted(tally.worlds)),
    ]
    never = tally.never_happened()
    if never:
        lines.append("never happened: " + ", ".join(never))
    return lines


def progress_line(tally: Tally, wall_s: float) -> str:
    """Return the one line that a soak shows while it runs."""
    faults = " ".join(f"{kind} {tally.faults[kind]:,}" for kind in FAULTS)
    return f"{wall_s:6.0f} s  {tally.seeds:,} seeds  {tally.steps:,} steps  {tally.violations} violations  {faults}"


def canaries_as_json(caught: Sequence[Caught]) -> dict[str, object]:
    """Return what `--canary all --json` prints."""
    return {
        "canaries": [
            {
                "fault": entry.canary.fault,
                "mutation": entry.canary.name,
                "caught_after": entry.caught_after,
                "invariant": entry.invariant,
                "seed": entry.seed,
                "what": entry.what,
                "broken": entry.broken,
            }
            for entry in caught
        ]
    }


def canary_line(entry: Caught) -> str:
    """Return one row of the table of canaries."""
    after = "survived" if entry.caught_after is None else str(entry.caught_after)
    line = f"{entry.canary.fault:<5} {after:>8}  {entry.invariant or '-':<9}  {entry.canary.name}: {entry.canary.what}"
    if entry.broken:
        expected = entry.canary.raises or ", ".join(sorted(entry.canary.by))
        line += f"\n      BROKEN: expected {expected}, and seed {entry.seed} shows {entry.what}"
    return line


CANARY_HEADER = f"{'fault':<5} {'seeds':>8}  {'invariant':<9}  what is taken away"


def _counts(counts: dict[str, int], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {counts[name]:,}" for name in names if counts[name])

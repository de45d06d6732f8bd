"""The command line of `kvtide simulate`."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from contextlib import ExitStack

from kvtide.commands import Arguments, Suggested, Whole, command, flag, option
from kvtide.progress import LinesNowAndThen, waiting
from kvtide.sim.arguments import (
    canaries,
    canary,
    canary_names,
    check_together,
    duration_s,
    first_seed,
    guards_by_fault,
    job_count,
    read_seed,
)
from kvtide.sim.batch import chunks, run_canary, run_here, run_on_all, run_seed
from kvtide.sim.options import WORLD_OPTIONS, Overrides, apply_overrides, parse_overrides
from kvtide.sim.present import (
    CANARY_HEADER,
    canaries_as_json,
    canary_line,
    command_for,
    progress_line,
    tally_as_json,
    tally_lines,
    violation_lines,
)
from kvtide.sim.shrink import Shrinker
from kvtide.sim.tally import Tally
from kvtide.sim.world import World

SEEDS_DEFAULT = 1_000
PROGRESS_EVERY_S = 0.5
"""How often progress is shown on a terminal."""
EXIT_INTERRUPTED = 130

DESCRIPTION = """\
Run the real core against a simulated serving engine in virtual time, with everything drawn from a seed: pools, groups,
ranks, traffic, delays and failures. After every step, checkers that share nothing with the core look for anything that
must never happen (I1 to I15). The same seed gives the same run, on every Python."""

EXAMPLES = """\
  kvtide simulate                              1,000 fresh seeds
  kvtide simulate --seeds 20000 --jobs 8       more of them, on eight cores
  kvtide simulate --seed 42 --log              one world, step by step
  kvtide simulate --seed 42 --shrink           if it fails: a smaller world that fails in the same way
  kvtide simulate --canary all                 take each guard away and see that it is noticed
  kvtide simulate --canary no-load-fence --seed 31 --log  how a missing fence shows
  kvtide simulate --soak 10m                   fresh seeds on all cores, until time is up or Ctrl-C
  kvtide simulate --world mode=lazy,ranks=2    fresh seeds of one kind
  kvtide simulate --world node=yes             several engines that share the memory of a node

"""

EXIT_CODES = """

Exit codes: 0 nothing found, 1 a violation, or a canary that survived or is broken, 2 bad option, 130 Ctrl-C"""


def run(args: Arguments) -> int:
    """Do what the arguments ask for; return the exit code."""
    overrides = parse_overrides(args.world)
    check_together(args)
    if args.seed is not None:
        return _run_one(args, read_seed("--seed", args.seed), overrides)
    if args.canary is not None:
        return _run_canaries(args, overrides)
    return _run_many(args, overrides)


# ---------------------------------------------------------------------- one seed


def _run_one(args: Arguments, seed: int, overrides: Overrides) -> int:
    with ExitStack() as stack:
        if args.canary is not None:
            overrides = {**canary(args.canary).world, **overrides}
            stack.enter_context(canary(args.canary).applied())
        if args.shrink:
            return _shrink(args, seed, overrides)
        world = apply_overrides(World.draw(seed), overrides)
        result = run_seed(seed, overrides, log=args.log)
    if args.json:
        tally = Tally()
        tally.add(result)
        _say(json.dumps(tally_as_json(tally, 0.0, seed, overrides) | ({"log": result.log} if args.log else {})))
        return int(result.found is not None)
    if args.log:
        for line in [f"seed {seed}", *world.describe(), *result.log]:
            _say(line)
    if result.found is None:
        _say(f"seed {seed}: {result.steps} steps, nothing found")
        return 0
    for line in violation_lines(result.found, overrides, args.canary):
        _say(line)
    return 1


def _shrink(args: Arguments, seed: int, overrides: Overrides) -> int:
    shrinker = Shrinker(seed, overrides)
    if shrinker.result.found is None:
        _say(f"seed {seed}: {shrinker.result.steps} steps, nothing found, nothing to shrink")
        return 0
    with waiting(f"shrinking the world of seed {seed}"):
        shrinker.shrink()
    found = shrinker.result.found
    assert found is not None
    if args.json:
        world = {"seed": seed, "world": shrinker.overrides, "step": found.step, "invariant": found.invariant}
        _say(json.dumps(world | {"reproduce": command_for(seed, shrinker.overrides, args.canary)}))
        return 1
    _say(f"the smallest of {shrinker.runs} worlds:")
    for line in apply_overrides(World.draw(seed), shrinker.overrides).describe():
        _say(f"  {line}")
    for line in violation_lines(found, shrinker.overrides, args.canary):
        _say(line)
    return 1


# ---------------------------------------------------------------------- canaries


def _run_canaries(args: Arguments, overrides: Overrides) -> int:
    chosen = canaries(args.canary)
    first = first_seed(args)
    caught = []
    if not args.json:
        _say(f"first seed {first}")
        _say(CANARY_HEADER)
    for mutation in chosen:
        with waiting(f"seeds without {mutation.name}"):
            entry = run_canary(mutation, first, overrides)
        caught.append(entry)
        if not args.json:
            _say(canary_line(entry))
    if args.json:
        _say(json.dumps(canaries_as_json(caught)))
    return int(any(entry.caught_after is None or entry.broken for entry in caught))


# ---------------------------------------------------------------------- many seeds


def _run_many(args: Arguments, overrides: Overrides) -> int:
    limit_s = duration_s(args.soak) if args.soak is not None else None
    seeds = SEEDS_DEFAULT if args.seeds is None and limit_s is None else args.seeds
    jobs = job_count(args.jobs, all_cores=args.soak is not None)
    first = first_seed(args)
    begin_s = time.monotonic()
    show = _Progress(begin_s, overrides, violations_at_once=not args.json)
    if not args.json:
        _say(f"seeds from {first} on")
    if jobs == 1 and limit_s is None:
        tally = run_here(chunks(first, seeds), overrides, show)
    else:
        tally = run_on_all(chunks(first, seeds), overrides, show, jobs=jobs, duration_s=limit_s)
    show.end()
    wall_s = time.monotonic() - begin_s
    if args.json:
        _say(json.dumps(tally_as_json(tally, wall_s, first, overrides)))
    else:
        # Once more, for those who look at the end of a long log.
        again = [line for found in tally.found for line in violation_lines(found, overrides)]
        for line in (*tally_lines(tally, wall_s), *again):
            _say(line)
    return 1 if tally.violations else EXIT_INTERRUPTED if tally.interrupted else 0


class _Progress:
    """Violations on stdout as they are found; on stderr one line that is written over, or now and then a new one."""

    def __init__(self, begin_s: float, overrides: Overrides, *, violations_at_once: bool) -> None:
        self._begin_s = begin_s
        self._overrides = overrides
        self._at_once = violations_at_once
        self._told = 0
        self._shown_s = begin_s
        self._terminal = sys.stderr.isatty()
        self._lines = LinesNowAndThen()

    def __call__(self, tally: Tally) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= PROGRESS_EVERY_S if self._terminal else self._lines.is_time():
            self._shown_s = now_s
            line = progress_line(tally, now_s - self._begin_s)
            width = shutil.get_terminal_size().columns - 1  # what wraps cannot be overwritten
            sys.stderr.write(f"\r\x1b[K{line[:width]}" if self._terminal else f"{line}\n")
            sys.stderr.flush()
        for found in tally.found[self._told :] if self._at_once else ():
            self.end()
            self._told += 1
            for line in violation_lines(found, self._overrides):
                _say(line)

    def end(self) -> None:
        """Leave the line free."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


_GUARDS = "\n".join(
    textwrap.fill(
        ", ".join(names), 80, initial_indent=f"  {fault:<4} ", subsequent_indent=" " * 7, break_on_hyphens=False
    )
    for fault, names in guards_by_fault().items()
)
_WORLDS = "\n".join(f"  {name:<22} {option.what}: {option.expected}" for name, option in WORLD_OPTIONS.items())

COMMAND = command(
    "simulate",
    text=DESCRIPTION,
    examples=f"{EXAMPLES}Guards by fault (--canary):\n{_GUARDS}\n\nWorld options (--world):\n{_WORLDS}{EXIT_CODES}",
    params=[
        option("--seeds", f"run N seeds (default: {SEEDS_DEFAULT:,})", Whole(1)),
        option("--first", "the first of them (default: drawn, and printed)", metavar="N"),
        option("--seed", "run one seed", metavar="N"),
        flag("--log", "with --seed: print what happens"),
        flag("--shrink", "with --seed: look for a smaller world that fails too"),
        option(
            "--canary",
            "let a fault in, to see that it is found: all, a fault, or one of its guards (see below)",
            Suggested(canary_names()),
        ),
        option("--soak", "run fresh seeds for this long, such as 90s, 10m or 2h", metavar="TIME"),
        option("--jobs", "processes (default: 1; for --soak: all cores)", Whole(1)),
        option("--world", "fix a world option", metavar="NAME=VALUE", many=True),
        flag("--json", "print one JSON object"),
    ],
    run=run,
)

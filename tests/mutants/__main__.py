"""The command: tries mutants of the core until all are tried or time is up, and lists those that survived."""

from __future__ import annotations

import argparse
import difflib
import random
import sys
import time
from pathlib import Path

import kvtide
from tests.mutants import equivalent
from tests.mutants.judge import TESTS, Judge
from tests.mutants.mutant import ROOT, Mutant, all_mutants

UNITS_S = {"s": 1, "m": 60, "h": 3600}


def say(text: str) -> None:
    """Write a line."""
    print(text, flush=True)  # noqa: T201  it is a command


def duration_s(text: str) -> float:
    """Read `20m`, `2h`."""
    try:
        return float(text[:-1]) * UNITS_S[text[-1:]]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: 30s, 20m, 2h") from None


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--time", type=duration_s, metavar="20m", help="stop after so long (when all are tried)")
    parser.add_argument("--seed", type=int, help="in which order they are tried (a new one each time)")
    parser.add_argument("--file", action="append", metavar="ledger.py", help="only those of this file of the core")
    parser.add_argument("--mutant", action="append", metavar="ID", help="only this one; shows what it changes")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help=f"the judges ({' '.join(TESTS)})")
    parser.add_argument("--quick", action="store_true", help="ask the quickest tests and a few seeds: shows suspects")
    return parser.parse_args()


def chosen(options: argparse.Namespace, mutants: list[Mutant]) -> list[Mutant]:
    """Return the mutants to be tried, in the order of the seed; one file after the other if files are named."""
    files, ids = options.file or [], options.mutant or []
    for wanted, there in ((files, {mutant.file for mutant in mutants}), (ids, {mutant.id for mutant in mutants})):
        for name in set(wanted) - there:
            sys.exit(f"there is no {name!r} among {len(there)} of them")
    picked = [m for m in mutants if (not files or m.file in files) and (not ids or m.id in ids)]
    random.Random(options.seed).shuffle(picked)
    return sorted(picked, key=lambda mutant: files.index(mutant.file)) if files else picked


def diff(mutant: Mutant) -> str:
    """Return a mutant as a patch."""
    name = f"src/kvtide/core/{mutant.file}"
    before = mutant.path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, mutant.source.splitlines(keepends=True), f"a/{name}", f"b/{name}"))


def try_all(judge: Judge, mutants: list[Mutant], end_s: float | None) -> dict[Mutant, str | None]:
    """Judge mutants until time is up; return who caught each, and say it at once when nobody did."""
    caught: dict[Mutant, str | None] = {}
    for mutant in mutants:
        if end_s is not None and time.monotonic() >= end_s:
            break
        caught[mutant] = judge.catches(mutant)
        if len(caught) % 50 == 0:
            say(f"  {len(caught)} of {len(mutants)} tried")
        if caught[mutant] is None:
            say(f"  survived  {mutant.id}  {mutant.name}")
    return caught


def main() -> int:
    """Try mutants; return 0 when all survivors are on the list, and the list is right."""
    options = parse()
    if not Path(kvtide.__file__).is_relative_to(ROOT):
        sys.exit(f"kvtide is imported from {kvtide.__file__}, and not from here: set PYTHONPATH=src")
    options.seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    mutants = all_mutants()
    picked = chosen(options, mutants)
    say(f"{len(picked)} of {len(mutants)} mutants, in the order of --seed {options.seed}")
    caught: dict[Mutant, str | None] = {}

    def use(judge: Judge) -> None:
        say("==> the tests as they are pass; now with one change at a time")
        end_s = None if options.time is None else time.monotonic() + options.time
        caught.update(try_all(judge, picked, end_s))

    if status := Judge(use, tuple(options.tests), options.quick).collect():
        return status
    return conclude(options, mutants, caught)


def conclude(options: argparse.Namespace, mutants: list[Mutant], caught: dict[Mutant, str | None]) -> int:
    """Compare what survived with the list."""
    reasons = equivalent.read(equivalent.LIST.read_text(encoding="utf-8"))
    survived = [mutant for mutant, by in caught.items() if by is None]
    new = sorted((mutant for mutant in survived if mutant.name not in reasons), key=lambda m: (m.file, m.line))
    noticed = [(mutant, by) for mutant, by in caught.items() if by is not None and mutant.name in reasons]
    gone = equivalent.gone(reasons, {mutant.name for mutant in mutants})
    say(f"==> {len(caught)} tried, {len(caught) - len(survived)} caught, {len(survived)} survived")
    for mutant, by in caught.items() if options.mutant else ():
        say(f"\n{diff(mutant)}\ncaught by {by}" if by else f"\n{diff(mutant)}\nsurvived")
    if new:
        say(f"==> {len(new)} survived and are not in {equivalent.LIST.name}; to see one: --mutant ID, to try it: patch")
    for mutant in new:
        say(f"src/kvtide/core/{mutant.file}:{mutant.line}  --mutant {mutant.id}\n{mutant.name}")
    for mutant, by in noticed:
        say(f"on the list, and caught by {by}:\n{mutant.name}")
    for name in gone:
        say(f"on the list, and there is no such line any more:\n{name}")
    return int(bool(new or noticed or gone))


if __name__ == "__main__":
    sys.exit(main())

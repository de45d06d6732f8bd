"""The command line of `kvtide tier`: look at a place, verify it, empty it. See `kvtide.tiers.admin`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from kvtide.commands import Arguments, Run, argument, command, exit_codes, flag, group, need_terminal, option
from kvtide.errors import ConfigError
from kvtide.output import put, tell
from kvtide.progress import progress, waiting
from kvtide.redaction import redacted
from kvtide.tiers.admin import OtherFormat
from kvtide.tiers.config import KINDS, Kind, kind_of
from kvtide.tiers.found_lines import counted, described
from kvtide.units import how_many, size_text

_PLACE = "the folder of a disk tier, or the URL of a shared store"
DESCRIPTION = """\
Look at a place where blocks are kept below host memory, verify it, or empty it. PLACE is the folder of a disk tier, or
the URL of a shared store. The folder of a node's tier has a store for each model: name it for all, or one of them.
`verify` and `clear` refuse a folder that a server or a node is using; `inspect` looks at it anyway."""

EXAMPLES = """\
  kvtide tier inspect /var/cache/kvtide              what is there, made by which model
  kvtide tier inspect --json /var/cache/kvtide       the same, for programs
  kvtide tier verify /var/cache/kvtide               read every record, compare checksums
  kvtide tier clear /var/cache/kvtide                remove everything, after asking
  kvtide tier inspect valkey://cache.example:6379 --option password_file=/etc/kvtide/password""" + exit_codes(
    wrong="records that do not verify, or nobody agreed", such_as="a place that cannot be used"
)


def run_inspect(args: Arguments) -> int:
    """Say what is there."""
    kind = _kind_at(args.place)
    found = _inspected(kind, args.place, _options(kind, args.option))
    if args.json:
        put(json.dumps(found))
        return 0
    for line in described(found):
        put(line)
    return 0


def run_verify(args: Arguments) -> int:
    """Read every record and compare checksums."""
    kind = _kind_at(args.place)
    options = _options(kind, args.option)
    with progress(size_text) as advance:
        found = kind.verify(args.place, options, lambda done, total: advance("verifying", done, total))
    if args.json:
        shown = {"records": found.records, "bytes": found.bytes, "corrupt_records": found.corrupt_records}
        put(json.dumps({**shown, "corrupt": list(found.corrupt), "other_formats": list(found.other_formats)}))
    else:
        put(f"{how_many(found.records, 'record')}, {size_text(found.bytes)}: {found.corrupt_records:,} do not verify")
        for where in found.corrupt:
            put(f"  {where}")
        for where in found.other_formats:
            put(f"{where} has another format, and was not read")
    return int(found.corrupt_records > 0)


def run_clear(args: Arguments) -> int:
    """Remove everything, once somebody has agreed."""
    kind = _kind_at(args.place)
    options = _options(kind, args.option)
    shown = redacted(args.place) if "://" in args.place else args.place
    if args.dry_run:
        found = _inspected(kind, args.place, options)
        put(
            json.dumps({name: found[name] for name in ("records", "bytes", "other_formats") if name in found})
            if args.json
            else f"{counted(found)} would be removed from {shown}"
        )
        return 0
    if not args.yes and not _agreed(kind, args.place, options, shown):
        tell("kvtide: nothing was removed")
        return 1
    with progress() as advance:
        removed = kind.clear(args.place, options, lambda done, total: advance("removing records", done, total))
    put(json.dumps({"records": removed}) if args.json else f"{how_many(removed, 'record')} removed from {shown}")
    return 0


def _agreed(kind: Kind, place: str, options: dict[str, object], shown: str) -> bool:
    """Look what is there, and ask on the terminal. Without one nobody can answer, and nothing is removed."""
    try:
        what = counted(_inspected(kind, place, options))
    except OtherFormat:
        what = "everything of kvtide's"
    need_terminal(f"remove {what} from {shown}")
    return click.confirm(f"Remove {what} from {shown}?", default=False, err=True)


def _inspected(kind: Kind, place: str, options: dict[str, object]) -> dict[str, object]:
    with waiting("looking"):
        return kind.inspect(place, options)


def _kind_at(place: str) -> Kind:
    """Return the module that knows a place: that of its URL's scheme, or the disk's."""
    if "://" not in place:
        return kind_of("PLACE", "disk")
    scheme = place.partition("://")[0]
    if scheme in KINDS and f"{scheme}://" in (kind := kind_of("PLACE", scheme)).URL_SCHEMES:
        return kind
    known = {prefix: kind for kind in map(_quietly, KINDS) if kind is not None for prefix in kind.URL_SCHEMES}
    for prefix, kind in known.items():
        if place.startswith(prefix):
            return kind
    raise ConfigError("PLACE", scheme + "://…", f"a folder, or a URL that begins with one of {', '.join(known)}")


def _quietly(name: str) -> Kind | None:
    try:
        return kind_of("PLACE", name)
    except ConfigError:
        return None


def _options(kind: Kind, pairs: Sequence[str]) -> dict[str, object]:
    """Read what has to do with access, and refuse what such a place does not know (F22)."""
    options: dict[str, object] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ConfigError(
                "--option", redacted(pair), "a name and a value, such as password_file=/etc/kvtide/password"
            )
        if name not in kind.ACCESS:
            expected = (
                f"one of {', '.join(kind.ACCESS)}" if kind.ACCESS else "none: this kind of place has no such options"
            )
            raise ConfigError("--option", name, expected)
        options[name] = value
    return options


def _command(name: str, what: str, examples: str, run: Run, *more: click.Parameter) -> click.Command:
    access = "an option of the tier that has to do with access, as in the option `tiers`"
    shared = [
        argument("PLACE", required=True),
        option("--option", access, metavar="NAME=VALUE", many=True),
        *more,
        flag("--json", "print one JSON object"),
    ]
    text = f"{what.capitalize()}. PLACE: {_PLACE}."
    return command(name, summary=what, text=text, examples=examples, params=shared, run=run)


COMMAND = group(
    "tier",
    text=DESCRIPTION,
    examples=EXAMPLES,
    commands=[
        _command(
            "inspect",
            "say what is there and which model made it",
            "  kvtide tier inspect /var/cache/kvtide\n"
            "  kvtide tier inspect valkey://cache.example:6379 --option password_file=/etc/kvtide/password"
            + exit_codes(),
            run_inspect,
        ),
        _command(
            "verify",
            "read every record and compare checksums",
            "  kvtide tier verify /var/cache/kvtide" + exit_codes(wrong="records that do not verify"),
            run_verify,
        ),
        _command(
            "clear",
            "remove everything that is kvtide's",
            "  kvtide tier clear /var/cache/kvtide               asks before it does\n"
            "  kvtide tier clear --dry-run /var/cache/kvtide     says what would be removed\n"
            "  kvtide tier clear --yes /var/cache/kvtide         for scripts" + exit_codes(wrong="nobody agreed"),
            run_clear,
            flag("--yes", "do not ask"),
            flag("--dry-run", "count what would be removed, and leave it"),
        ),
    ],
)

"""The command line of `kvtide tier`: look at a place, verify it, empty it. See `kvtide.tiers.admin`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvtide.errors import ConfigError
from kvtide.options import redacted
from kvtide.tiers.admin import Progress as Advance
from kvtide.tiers.admin import Verified
from kvtide.tiers.config import KINDS, kind_of
from kvtide.units import size_text

DESCRIPTION = """\
Look at a place where blocks are kept below host memory, verify it, or empty it. PLACE is the folder of a disk tier, or
the URL of a shared store. `verify` and `clear` refuse a folder that a server is using; `inspect` looks at it anyway."""

EXAMPLES = """\
examples:
  kvtide tier inspect /var/cache/kvtide              what is there, made by which model
  kvtide tier inspect --json /var/cache/kvtide       the same, for programs
  kvtide tier verify /var/cache/kvtide               read every record, compare checksums
  kvtide tier clear /var/cache/kvtide                remove everything
  kvtide tier inspect valkey://cache.example:6379 --option password_file=/etc/kvtide/password

exit codes: 0 all is well, 1 records that do not verify, 2 a place that cannot be used"""


class Operations(Protocol):
    """What a type's module has for operators."""

    URL_SCHEMES: tuple[str, ...]

    def inspect(self, place: str, options: dict[str, object]) -> dict[str, object]:
        """Say what is there."""

    def verify(self, place: str, options: dict[str, object], progress: Advance) -> Verified:
        """Read and check every record."""

    def clear(self, place: str, options: dict[str, object], progress: Advance) -> int:
        """Remove everything."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the subcommands known."""
    command = commands.add_parser(
        "tier",
        help="look at disk tiers and shared stores, verify or empty them",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    inner = command.add_subparsers(dest="tier_command", metavar="COMMAND", title="commands", required=True)
    for name, what, run in (
        ("inspect", "say what is there and which model made it", run_inspect),
        ("verify", "read every record and compare checksums", run_verify),
        ("clear", "remove everything that is kvtide's", run_clear),
    ):
        parser = inner.add_parser(name, help=what, description=f"{what.capitalize()}.")
        parser.add_argument("place", metavar="PLACE", help="folder of a disk tier, or URL of a shared store")
        parser.add_argument(
            "--option",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="an option of the tier that has to do with access, as in the option `tiers`",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.set_defaults(run=run)


def run_inspect(args: argparse.Namespace) -> int:
    """Say what is there."""
    operations = _operations(args.place)
    found = operations.inspect(args.place, _options(operations, args.option))
    if args.json:
        _put(json.dumps(found))
        return 0
    for line in _described(found):
        _put(line)
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Read every record and compare checksums."""
    operations = _operations(args.place)
    options = _options(operations, args.option)
    with _progress("verifying", size_text) as advance:
        found = operations.verify(args.place, options, advance)
    if args.json:
        shown = {"records": found.records, "bytes": found.bytes, "corrupt_records": found.corrupt_records}
        _put(json.dumps({**shown, "corrupt": list(found.corrupt)}))
    else:
        _put(f"{found.records:,} records, {size_text(found.bytes)}: {found.corrupt_records:,} do not verify")
        for where in found.corrupt:
            _put(f"  {where}")
    return int(found.corrupt_records > 0)


def run_clear(args: argparse.Namespace) -> int:
    """Remove everything."""
    operations = _operations(args.place)
    options = _options(operations, args.option)
    with _progress("removing", lambda records: f"{records:,} records") as advance:
        removed = operations.clear(args.place, options, advance)
    shown = redacted(args.place) if "://" in args.place else args.place
    _put(json.dumps({"records": removed}) if args.json else f"{removed:,} records removed from {shown}")
    return 0


def _operations(place: str) -> Operations:
    """Return the module that knows a place: that of its URL's scheme, or the disk's."""
    if "://" not in place:
        return cast(Operations, kind_of("PLACE", "disk"))
    scheme = place.partition("://")[0]
    if scheme in KINDS and f"{scheme}://" in (kind := cast(Operations, kind_of("PLACE", scheme))).URL_SCHEMES:
        return kind
    known = {prefix: kind for kind in map(_quietly, KINDS) if kind is not None for prefix in kind.URL_SCHEMES}
    for prefix, kind in known.items():
        if place.startswith(prefix):
            return kind
    raise ConfigError("PLACE", scheme + "://…", f"a folder, or a URL that begins with one of {', '.join(known)}")


def _quietly(name: str) -> Operations | None:
    try:
        return cast(Operations, kind_of("PLACE", name))
    except ConfigError:
        return None


def _options(operations: Operations, pairs: Sequence[str]) -> dict[str, object]:
    """Read what has to do with access, and refuse what such a place does not know (F22)."""
    known: tuple[str, ...] = getattr(operations, "ACCESS", ())
    options: dict[str, object] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ConfigError(
                "--option", redacted(pair), "a name and a value, such as password_file=/etc/kvtide/password"
            )
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "none: this kind of place has no such options"
            raise ConfigError("--option", name, expected)
        options[name] = value
    return options


def _described(found: dict[str, object]) -> Iterator[str]:
    """Say it in lines: what every kind of place has, then each namespace with its parts."""
    nested = ("namespaces", "ranks")
    for name, value in found.items():
        if name not in nested:
            yield f"{name}: {size_text(value) if name == 'bytes' and isinstance(value, int) else value}"
    for rank in _dicts(found.get("ranks")):
        used_by = rank.get("used_by")
        who = "in use by nobody" if used_by is None else f"in use by process {used_by or '?'}"
        yield f"rank {rank['rank']} of {rank['world']}: {rank['segments']} segments, {rank['disk_bytes']} bytes, {who}"
        if rank.get("unreadable_segments"):
            yield f"  segments that cannot be read: {rank['unreadable_segments']}"
    for namespace in _dicts(found.get("namespaces")):
        records, size = namespace.get("records"), namespace.get("bytes")
        yield f"namespace: {records} records, {size_text(size) if isinstance(size, int) else size}"
        manifest = namespace.get("manifest")
        for name, value in manifest.items() if isinstance(manifest, dict) else ():
            yield f"  {name}: {value}"


def _dicts(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


@contextmanager
def _progress(what: str, count: Callable[[int], str]) -> Iterator[Advance]:
    """Show how far it is, on a terminal only: `count` says it where nobody knows how much there is."""
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.fields[far]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as shown:
        task = shown.add_task(what, total=None, far="")
        yield lambda done, total: shown.update(
            task, completed=done, total=total, far=f"{done / total:.0%}" if total else count(done)
        )


def _put(text: str) -> None:
    sys.stdout.write(f"{text}\n")

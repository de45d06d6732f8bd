"""The commands `kvtide node status` and `kvtide node clear`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kvtide.commands import Arguments, File, argument, command, exit_codes, flag, misused, need_terminal, option
from kvtide.errors import ConfigError
from kvtide.node.ask import clear, status_of
from kvtide.node.shown import described
from kvtide.output import put, tell
from kvtide.units import how_many

STATUS_EXAMPLES = """\
  kvtide node status --socket /run/kvtide/node.sock
  kvtide node status --socket /run/kvtide/node.sock --json""" + exit_codes(such_as="no node answers")

CLEAR_TEXT = """\
Let a running node forget all blocks of a namespace, in host memory and in its tiers. Engines go on, what they are
loading is loaded, and what they compute from now on is stored again. NAMESPACE is the name that `kvtide node status`
shows, the beginning of it, or its model."""
CLEAR_EXAMPLES = """\
  kvtide node clear --socket /run/kvtide/node.sock 3f9a             asks before it does
  kvtide node clear --socket /run/kvtide/node.sock --dry-run 3f9a   says how many blocks it would be
  kvtide node clear --socket /run/kvtide/node.sock --yes Qwen3-8B   for scripts""" + exit_codes(
    wrong="nobody agreed", such_as="no node answers, or it has no such namespace"
)


def run_status(args: Arguments) -> int:
    """Ask a node how it is."""
    found = status_of(_path(args))
    if args.json:
        put(json.dumps(found))
    else:
        for line in described(found):
            put(line)
    return 0


def run_clear(args: Arguments) -> int:
    """Let a node forget, once somebody has agreed."""
    path = _path(args)
    namespace = chosen(status_of(path)["namespaces"], args.namespace)
    name, blocks = str(namespace["name"]), int(namespace["cached"])
    what = f"{how_many(blocks, 'block')} of namespace {name} ({namespace['model']})"
    if tiers := ", ".join(f"{tier['name']} ({tier['place']})" for tier in namespace["tiers"]):
        what += f" and all that is below, in {tiers}"
    if args.dry_run:
        put(json.dumps({"namespace": name, "blocks": blocks}) if args.json else f"{what} would be forgotten")
        return 0
    if not args.yes and not _agreed(what):
        tell("kvtide: nothing was cleared")
        return 1
    blocks = clear(path, name)
    put(json.dumps({"namespace": name, "blocks": blocks}) if args.json else f"{how_many(blocks, 'block')} forgotten")
    return 0


def chosen(namespaces: list[Mapping[str, Any]], wanted: str) -> Mapping[str, Any]:
    """Return the namespace that somebody means. Raises `ConfigError` if that is none, or not only one."""
    by_model = [each for each in namespaces if wanted in (each["model"], str(each["model"]).rpartition("/")[2])]
    found = by_model or [each for each in namespaces if wanted and str(each["name"]).startswith(wanted)]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(f"{each['name']} ({each['model']})" for each in found or namespaces) or "none"
    raise ConfigError("NAMESPACE", wanted, f"one of those that the node has: {shown}")


def _agreed(what: str) -> bool:
    """Ask on the terminal. Without one nobody can answer, and nothing is done."""
    need_terminal(f"forget {what}")
    return click.confirm(f"Forget {what}?", default=False, err=True)


def _path(args: Arguments) -> Path:
    if args.socket is None:
        raise misused("which node? --socket PATH")
    return Path(args.socket)


_SOCKET = option("--socket", "the Unix socket of the node", File(), metavar="PATH")
_JSON = flag("--json", "print one JSON object")

STATUS = command(
    "status",
    text="Show the engines of a running node, the memory that they share, and what became of look-ups.",
    summary="show engines, namespaces, leases and hits",
    examples=STATUS_EXAMPLES,
    params=[_SOCKET, _JSON],
    run=run_status,
)
CLEAR = command(
    "clear",
    text=CLEAR_TEXT,
    summary="forget all blocks of a namespace",
    examples=CLEAR_EXAMPLES,
    params=[
        argument("NAMESPACE", required=True, kind=click.STRING),
        _SOCKET,
        flag("--yes", "do not ask"),
        flag("--dry-run", "count what would be forgotten, and leave it"),
        _JSON,
    ],
    run=run_clear,
)

"""The command line of `kvtide node`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from kvtide.commands import SIZES, Arguments, File, Whole, command, flag, group, option
from kvtide.node.client import Client
from kvtide.node.errors import NodeError, NoNode
from kvtide.node.frames import Kind
from kvtide.node.hello import Hello, Role
from kvtide.node.lines import Lines
from kvtide.node.node import Node
from kvtide.node.settings import read_settings
from kvtide.node.shown import described
from kvtide.node.tiers.lines import tiers_say
from kvtide.output import put

ANSWER_S = 5.0
PORT_MAX = 65535

TEXT = f"""\
Keep one host pool for all engines of this machine, in a process that outlives them. Runs in the foreground until
SIGTERM or Ctrl-C. Only processes of the same user, or of the group of --group, may connect. In sizes, {SIZES}."""

EXAMPLES = """\
  kvtide node --memory 64GiB --socket /run/kvtide/node.sock
  kvtide node --memory 64GiB --socket /run/kvtide/node.sock --group vllm --metrics 9400
  kvtide node --memory 64GiB --socket /run/kvtide/node.sock --tier type=disk,path=/var/cache/kvtide,size=500GiB
  kvtide node status --socket /run/kvtide/node.sock

Exit codes: 0 it was stopped, 2 it was asked for something that cannot be done"""

STATUS_TEXT = "Show the engines of a running node, their processes, and the memory that they share."
STATUS_EXAMPLES = """\
  kvtide node status --socket /run/kvtide/node.sock
  kvtide node status --socket /run/kvtide/node.sock --json

Exit codes: 0 all is well, 2 no node answers"""


def run(args: Arguments) -> int:
    """Be a node."""
    if args.memory is None or args.socket is None:
        raise click.UsageError("a node needs --memory SIZE and --socket PATH", click.get_current_context())
    settings = read_settings(
        memory=args.memory, socket=args.socket, group=args.group, metrics=args.metrics, tier=args.tier or ()
    )
    say = Lines(_write)
    try:
        with tiers_say(say):
            node = Node(settings, say)
            node.stop_on_signals()
            node.run()
    finally:
        say.close()
    return 0


def _write(line: str) -> None:
    sys.stderr.write(f"kvtide: {line}\n")
    sys.stderr.flush()


def run_status(args: Arguments) -> int:
    """Ask a node how it is."""
    if args.socket is None:
        raise click.UsageError("which node? --socket PATH", click.get_current_context())
    found = status_of(Path(args.socket))
    if args.json:
        put(json.dumps(found))
    else:
        for line in described(found):
            put(line)
    return 0


def status_of(path: Path, timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Return what a node says of itself. Raises `NodeError`."""
    client = Client(path, Hello(Role.OPERATOR))
    try:
        client.wait(timeout_s)
        answer = client.ask(Kind.STATUS, timeout_s=timeout_s)
    finally:
        client.close()
    if answer is None:
        raise NoNode(f"the node at {path} did not answer within {timeout_s:g} s")
    found: dict[str, Any] = json.loads(answer.body)
    if "too_long_bytes" in found:
        raise NodeError(f"the node at {path} has more to say than fits: {found['too_long_bytes']} bytes")
    return found


_SOCKET = "the Unix socket of the node"
STATUS = command(
    "status",
    text=STATUS_TEXT,
    summary="show engines, their processes and the memory that they share",
    examples=STATUS_EXAMPLES,
    params=[option("--socket", _SOCKET, File(), metavar="PATH"), flag("--json", "print one JSON object")],
    run=run_status,
)

COMMAND: click.Command = group(
    "node",
    text=TEXT,
    examples=EXAMPLES,
    commands=[STATUS],
    params=[
        option("--memory", "memory for blocks of all engines", metavar="SIZE"),
        option("--socket", f"{_SOCKET}, which engines name in their option `node`", File(), metavar="PATH"),
        option(
            "--tier",
            "a place below host memory, nearest first: what engines write in `tiers`, as JSON or as names and values",
            metavar="NAME=VALUE,…",
            many=True,
        ),
        option("--group", "a group whose members may connect, too", metavar="NAME"),
        option(
            "--metrics",
            "answer Prometheus at this port, on this machine only; 0: any",
            Whole(0, PORT_MAX),
            metavar="PORT",
        ),
    ],
    run=run,
)

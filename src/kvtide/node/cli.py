"""The command line of `kvtide node`."""

from __future__ import annotations

import sys

import click

from kvtide.commands import SIZES, Arguments, File, Suggested, Whole, exit_codes, group, option
from kvtide.core import POLICIES
from kvtide.node.cli_operate import CLEAR, STATUS
from kvtide.node.lines import Lines
from kvtide.node.node import Node
from kvtide.node.settings import DEFAULT_POLICY, OPTIONS, PORT_MAX, options_of, read_settings
from kvtide.node.tiers.lines import tiers_say

TEXT = f"""\
Keep one host pool for all engines of this machine, in a process that outlives them. Runs in the foreground until
SIGTERM or Ctrl-C. Only processes of the same user, or of the group of --group, may connect. In sizes, {SIZES}."""

EXAMPLES = """\
  kvtide node --memory 64GiB --socket /run/kvtide/node.sock
  kvtide node --memory 64GiB --socket /run/kvtide/node.sock --group vllm --metrics 9400
  kvtide node --config node.json --share Qwen3-8B=40% --share Llama-3.1-8B=60%
  kvtide node --memory 64GiB --socket /run/kvtide/node.sock --tier type=disk,path=/var/cache/kvtide,size=500GiB
  kvtide node status --socket /run/kvtide/node.sock
  kvtide node clear --socket /run/kvtide/node.sock NAMESPACE""" + exit_codes("it was stopped")


def run(args: Arguments) -> int:
    """Be a node."""
    options = options_of(args.config, {name: getattr(args, name) for name in OPTIONS})
    if not {"memory", "socket"} <= options.keys():
        raise click.UsageError("a node needs --memory SIZE and --socket PATH", click.get_current_context())
    settings = read_settings(options)
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


_SHARE = (
    "memory that waits for a model, by its name or the last part of it: MODEL=40%; a percentage alone: the most for "
    "each model without a share of its own (default: all that is left)"
)
COMMAND: click.Command = group(
    "node",
    text=TEXT,
    examples=EXAMPLES,
    commands=[STATUS, CLEAR],
    params=[
        option("--memory", "memory for blocks of all engines", metavar="SIZE"),
        option("--socket", "the Unix socket, which engines name in their option `node`", File(), metavar="PATH"),
        option(
            "--policy",
            f"which block leaves first: {', '.join(POLICIES)} (default: {DEFAULT_POLICY})",
            Suggested(tuple(POLICIES)),
        ),
        option("--share", _SHARE, metavar="[MODEL=]PERCENT", many=True),
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
        option(
            "--config",
            "the same options as JSON, or a file with them; command-line options override it",
            File(),
            metavar="FILE",
        ),
    ],
    run=run,
)

"""The command line of `kvtide demo`."""

from __future__ import annotations

import argparse
from dataclasses import fields

from rich.console import Console

from kvtide.core import POLICIES
from kvtide.demo.compare import compare_modes
from kvtide.demo.progress import shown
from kvtide.demo.report import show
from kvtide.demo.settings import DemoSettings
from kvtide.errors import ConfigError

WINDOW_TOKENS = 64
"""The window of `--hybrid`."""

DESCRIPTION = """\
Serve conversations of several turns on a small transformer (numpy, on this machine's CPU) whose device pool is too
small for them, four times: with an unlimited device pool as the reference, without offloading, and with kvtide
storing blocks eagerly and lazily. Shows what had to be computed, what was loaded, and how long users waited.
Compute has one core (unless OPENBLAS_NUM_THREADS says otherwise), copies have the others."""

EXAMPLES = """\
examples:
  kvtide demo                                the table
  kvtide demo --json > demo.json             the same as one JSON object
  kvtide demo --hybrid --ranks 2             every second layer has a sliding window; KV heads on two ranks
  kvtide demo --host 32MiB --policy lru      a host pool that overflows too

exit codes: 0 outputs identical, 1 outputs differ, 2 bad option"""

NUMBERS = {
    "conversations": "conversations",
    "turns": "turns of each conversation",
    "prompt_tokens": "tokens that open a conversation",
    "turn_tokens": "tokens that the user adds in each later turn",
    "output_tokens": "tokens generated in each turn",
    "concurrency": "conversations served at a time",
    "device_blocks": "blocks of the device pool",
    "block_tokens": "tokens of a block",
    "ranks": "workers that share the KV heads",
    "seed": "weights and conversations are drawn from it",
}
"""Options that are whole numbers: settings of the same name, with their help."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the subcommand known."""
    parser = commands.add_parser(
        "demo",
        help="conversations that overflow the device pool, with and without offloading",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    defaults = {field.name: field.default for field in fields(DemoSettings)}
    for name, text in NUMBERS.items():
        help_text = f"{text} (default: {defaults[name]})"
        parser.add_argument(_option(name), type=_number, default=defaults[name], metavar="N", help=help_text)
    host = f'host memory, such as "64MiB" (default: {defaults["host"]})'
    parser.add_argument("--host", default=defaults["host"], metavar="SIZE", help=host)
    policy = f"which block leaves the host first: {', '.join(POLICIES)} (default: {defaults['policy']})"
    parser.add_argument("--policy", default=defaults["policy"], help=policy)
    parser.add_argument("--hybrid", action="store_true", help="give every second layer a sliding window")
    window = f"tokens of that window (default: {WINDOW_TOKENS})"
    parser.add_argument("--window", type=_number, metavar="N", help=window)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; return 1 if outputs differ."""
    settings = _settings(args)
    console = Console(stderr=True)
    with shown(console, settings.total_turns) as on_turn:
        comparison = compare_modes(settings, on_turn)
    return show(comparison, wants_json=args.json)


def _settings(args: argparse.Namespace) -> DemoSettings:
    """Check the options. Errors name them as they were written."""
    values = {field.name: getattr(args, field.name) for field in fields(DemoSettings)}
    if args.window is not None and not args.hybrid:
        raise ConfigError("--window", args.window, "to be used with --hybrid")
    if args.hybrid and args.window is None:
        values["window"] = WINDOW_TOKENS
    try:
        return DemoSettings(**values)
    except ConfigError as error:
        option = _option(error.option) if error.option in values else error.option
        raise ConfigError(option, error.value, error.expected) from error


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _number(text: str) -> int | str:
    """Return a whole number, or the text as it is, for the settings to refuse."""
    try:
        return int(text)
    except ValueError:
        return text

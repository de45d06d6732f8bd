"""The command line of `kvtide demo`."""

from __future__ import annotations

from dataclasses import fields

from rich.console import Console

from kvtide.commands import SIZES, Arguments, Choice, Whole, command, exit_codes, flag, maybe, option, refuse_written
from kvtide.core import POLICIES
from kvtide.demo import at_node, packed
from kvtide.demo.compare import RUNS, compare_modes
from kvtide.demo.progress import shown
from kvtide.demo.report import show
from kvtide.demo.settings import DemoSettings

WINDOW_TOKENS = 64
"""The window of `--hybrid`."""

DESCRIPTION = """\
Serve conversations of several turns on a small transformer (numpy, on this machine's CPU) whose device pool is too
small for them, four times: with an unlimited device pool as the reference, without offloading, and with kvtide
storing blocks eagerly and lazily. Shows what had to be computed, what was loaded, and how long users waited.
Compute has one core (unless OPENBLAS_NUM_THREADS says otherwise), copies have the others.

With --node the host memory is that of a `kvtide node`: instead of both modes, a first engine is shown, a second one
that shares the node with it, and the first one restarted.

With --packing KV is bf16, and host memory has room for three quarters of it, unless --host says otherwise. Instead of
both modes, blocks are shown as they are and packed: a third more of them in the same memory."""

EXAMPLES = """\
  kvtide demo                                the table
  kvtide demo --json > demo.json             the same as one JSON object
  kvtide demo --hybrid --ranks 2             every second layer has a sliding window; KV heads on two ranks
  kvtide demo --host 32MiB --policy lru      a host pool that overflows too
  kvtide demo --packing                      packed, more blocks are in a host pool that is too small
  kvtide demo --node                         several engines on a node, which the demo starts and stops
  kvtide demo --node /run/kvtide/node.sock   the same on a node that is there""" + exit_codes(
    "outputs identical", "outputs differ"
)

NUMBERS = {
    "conversations": ("conversations", 1),
    "turns": ("turns of each conversation", 2),
    "prompt_tokens": ("tokens that open a conversation", 1),
    "turn_tokens": ("tokens that the user adds in each later turn", 1),
    "output_tokens": ("tokens generated in each turn", 1),
    "concurrency": ("conversations served at a time", 1),
    "device_blocks": ("blocks of the device pool", 1),
    "block_tokens": ("tokens of a block", 1),
    "ranks": ("workers that share the KV heads", 1),
    "seed": ("weights and conversations are drawn from it", 0),
}
"""Options that are whole numbers: settings of the same name, with their help and the least they can be."""


def run(args: Arguments) -> int:
    """Run the demo; return 1 if outputs differ."""
    settings = _settings(args)
    console = Console(stderr=True)
    runs = packed.RUNS if args.packing else RUNS if args.node is None else at_node.RUNS
    with shown(console, settings.total_turns, runs) as on_turn:
        if args.packing:
            comparison = packed.compare_packed(settings, on_turn)
        elif args.node is None:
            comparison = compare_modes(settings, on_turn)
        else:
            comparison = at_node.compare_at_node(settings, args.node, on_turn)
    return show(comparison, wants_json=args.json)


def _settings(args: Arguments) -> DemoSettings:
    values = {field.name: getattr(args, field.name) for field in fields(DemoSettings)}
    if not args.hybrid:
        refuse_written(("window",), "to be used with --hybrid")
    if args.node is not None:
        refuse_written(("policy",), "not to be used with --node, which decides that")
        refuse_written(("packing",), "not to be used with --node")
    if args.node:
        refuse_written(("host",), "not to be used with --node PATH: that node has its own memory")
    if args.hybrid and args.window is None:
        values["window"] = WINDOW_TOKENS
    settings = DemoSettings(**values)
    return settings.with_too_small_a_host() if args.packing and args.host == _DEFAULTS["host"] else settings


_DEFAULTS = {field.name: field.default for field in fields(DemoSettings)}

COMMAND = command(
    "demo",
    text=DESCRIPTION,
    examples=EXAMPLES,
    params=[
        *(
            option(f"--{name.replace('_', '-')}", text, Whole(minimum), default=_DEFAULTS[name])
            for name, (text, minimum) in NUMBERS.items()
        ),
        option("--host", f"host memory; {SIZES}", default=_DEFAULTS["host"], metavar="SIZE"),
        option(
            "--policy",
            f"which block leaves the host first: {', '.join(POLICIES)}",
            Choice(tuple(POLICIES)),
            default=_DEFAULTS["policy"],
        ),
        flag("--hybrid", "give every second layer a sliding window"),
        option("--window", f"tokens of that window (default: {WINDOW_TOKENS})", Whole(2)),
        flag("--packing", "KV in bf16, packed on the host"),
        maybe("--node", "several engines on a node at PATH, or on one of the demo's own", metavar="[PATH]"),
        flag("--json", "print one JSON object instead of the table"),
    ],
    run=run,
)

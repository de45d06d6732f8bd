"""The command `kvtide`: finds the subcommand, and turns errors into one line and an exit code.

Results go to stdout, everything else to stderr. Exit codes: 0 all is well, 1 the run found something wrong,
2 it was asked for something that cannot be done, 130 interrupted, 141 nobody reads the output, 143 told to end.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

import click
from click.shell_completion import shell_complete

from kvtide import __version__
from kvtide.commands import Group, exit_codes
from kvtide.completion import COMPLETE_VARIABLE, completion_options
from kvtide.errors import ConfigError, KVTideError
from kvtide.redaction import redacted
from kvtide.signals import leaving_cleanly

EXIT_BAD_REQUEST = 2
EXIT_INTERRUPTED = 130
EXIT_NOBODY_READS = 141

MODULES: Mapping[str, str] = {
    "advise": "kvtide.top.cli_advise",
    "check": "kvtide.doctor.cli_check",
    "demo": "kvtide.demo.cli",
    "doctor": "kvtide.doctor.cli",
    "node": "kvtide.node.cli",
    "plan": "kvtide.traces.cli_plan",
    "replay": "kvtide.traces.cli_replay",
    "simulate": "kvtide.sim.cli",
    "tier": "kvtide.tiers.cli",
    "top": "kvtide.top.cli",
    "trace": "kvtide.traces.cli_trace",
}
"""Where each command is: `COMMAND` of a module, which is imported when it is used."""

SUMMARIES: Mapping[str, str] = {
    "advise": "say what would help a running server, or a node",
    "check": "check a server's options without starting it",
    "demo": "conversations that overflow the device pool, with and without offloading",
    "doctor": "look at this machine: what keeps it from serving, and what to do",
    "node": "keep one host pool for all engines of this machine",
    "plan": "how much host memory is worth buying",
    "replay": "serve a trace in virtual time and report hits and times",
    "simulate": "search for faults of the core in seeded worlds",
    "tier": "look at disk tiers and shared stores, verify or empty them",
    "top": "show what running servers do, live",
    "trace": "make synthetic traces, and look at traces",
}
"""For help, without importing them all."""

EXAMPLES = """\
Examples:
  kvtide demo                             see that it works, on this machine's CPU
  kvtide plan trace.jsonl --gpu H100      how much host memory is worth buying
  kvtide COMMAND --help                   options and examples of a command"""
EXIT_CODES = exit_codes(wrong="it found something wrong") + ", 130 Ctrl-C"


class _Commands(Group):
    """All commands. One is imported when it is asked for: help and completion have to be quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one."""
        if cmd_name not in MODULES:
            return None
        found: click.Command = importlib.import_module(MODULES[cmd_name]).COMMAND
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what there is."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def _without_command(ctx: click.Context) -> None:
    """Show what there is, where nothing is asked for."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


KVTIDE = _Commands(
    "kvtide",
    help="KV-cache offloading for LLM serving.",
    epilog=EXAMPLES + EXIT_CODES,
    no_args_is_help=False,
    invoke_without_command=True,
    callback=click.pass_context(_without_command),
    params=completion_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
click.version_option(__version__, prog_name="kvtide", message="%(prog)s %(version)s", help="show the version")(KVTIDE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        _need_streams()
        with leaving_cleanly():
            code = run(argv)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_what_cannot_be_written()
        code = EXIT_NOBODY_READS
    except (click.ClickException, KVTideError, OSError) as error:
        with suppress(OSError):  # stderr may be on the full disk too
            print(f"kvtide: error: {_in_one_line(error)}", file=sys.stderr)
        _forget_what_cannot_be_written()
        code = EXIT_BAD_REQUEST
    return code


def _need_streams() -> None:
    """Stand in for streams that a shell has closed (`2>&-`): Python has None there. Results need a real one."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:
        sys.stdout = sys.stderr
        raise OSError(errno.EBADF, "standard output is closed")


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, or raise what happened."""
    _limit_blas_threads()
    if COMPLETE_VARIABLE in os.environ:
        return shell_complete(KVTIDE, {}, "kvtide", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])
    arguments = list(sys.argv[1:] if argv is None else argv)
    with KVTIDE.make_context("kvtide", arguments) as context:
        result: Any = KVTIDE.invoke(context)
    return result or 0


def _limit_blas_threads() -> None:
    """Let numpy compute on one core, before it is imported: the others are for copies.

    Threads of BLAS wait for each other by spinning. When they share their cores with anything else, each small
    matrix product of a decode step takes many times as long, now and then.
    """
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(name, "1")


def _in_one_line(error: Exception) -> str:
    if isinstance(error, click.ClickException):
        # It repeats what it did not understand: perhaps the URL of a store, with a password.
        words = error.format_message().split()
        context = error.ctx if isinstance(error, click.UsageError) else None
        see = f"(see {context.command_path if context is not None else 'kvtide'} --help)"
        return " ".join([*(redacted(word) if "@" in word else word for word in words), see])
    if isinstance(error, OSError) and not isinstance(error, KVTideError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    if isinstance(error, ConfigError) and isinstance(error.value, bool):
        return f"{error.option}: expected {error.expected}"  # an option without a value
    return str(error)


def _forget_what_cannot_be_written() -> None:
    """Write what is left, or forget it: Python would try once more when it ends, and complain."""
    _flush_or_forget(sys.stdout)
    _flush_or_forget(sys.stderr)


def _flush_or_forget(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

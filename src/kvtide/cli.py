"""The command `kvtide`: finds the subcommand, and turns errors into one line and an exit code.

Results go to stdout, everything else to stderr. Exit codes: 0 all is well, 1 the run found something wrong,
2 it was asked for something that cannot be done, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from kvtide import __version__
from kvtide.errors import ConfigError, KVTideError
from kvtide.options import redacted

EXIT_BAD_REQUEST = 2
EXIT_INTERRUPTED = 130
EXIT_NOBODY_READS = 141


class Parser(argparse.ArgumentParser):
    """The parser of all commands: it takes options by their whole names, and its errors take one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to find out more."""
        self.exit(EXIT_BAD_REQUEST, f"kvtide: error: {_without_passwords(message)} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        _limit_blas_threads()
        parser = _parser()
        args, unknown = parser.parse_known_args(argv)
        if unknown:
            raise _unknown_option(unknown, args.command)
        if args.command is None:
            parser.print_help()
            return 0
        code: int = args.run(args)
    except KVTideError as error:
        print(f"kvtide: error: {error}", file=sys.stderr)
        return EXIT_BAD_REQUEST
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who reads the output has seen enough (| head). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NOBODY_READS
    return code


def _limit_blas_threads() -> None:
    """Let numpy compute on one core, before it is imported: the others are for copies.

    Threads of BLAS wait for each other by spinning. When they share their cores with anything else, each small
    matrix product of a decode step takes many times as long, now and then.
    """
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(name, "1")


def _parser() -> argparse.ArgumentParser:
    # Not at the top: `_limit_blas_threads` comes before numpy, which these import.
    from kvtide.demo import cli as demo  # noqa: PLC0415 (see above)
    from kvtide.sim import cli as sim  # noqa: PLC0415 (see above)
    from kvtide.tiers import cli as tiers  # noqa: PLC0415 (see above)
    from kvtide.top import cli as top  # noqa: PLC0415 (see above)
    from kvtide.traces import cli as traces  # noqa: PLC0415 (see above)

    parser: argparse.ArgumentParser = Parser(prog="kvtide", description="KV-cache offloading for LLM serving.")
    parser.add_argument("--version", action="version", version=f"kvtide {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    demo.add_parser(commands)
    sim.add_parser(commands)
    traces.add_parsers(commands)
    tiers.add_parser(commands)
    top.add_parsers(commands)
    return parser


def _without_passwords(message: str) -> str:
    """Return a message of argparse, which repeats what it did not understand: perhaps the URL of a store."""
    return " ".join(redacted(word) if "@" in word else word for word in message.split(" "))


def _unknown_option(unknown: Sequence[str], command: str | None) -> ConfigError:
    option, has_value, value = unknown[0].partition("=")
    if not has_value and len(unknown) > 1:
        value = unknown[1]
    option, value = redacted(option), redacted(value)
    return ConfigError(option, value, f"an option that `kvtide {command or ''}".rstrip() + " --help` lists")

"""What the commands share: printing, reading sizes and numbers, options about what is stored."""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from kvtide.core.config import Admission
from kvtide.options import parse_choice, parse_size


def tell(text: str) -> None:
    """Say something that is not a result."""
    sys.stderr.write(f"{text}\n")


def put(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{text}\n")


def parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, text: str, examples: str
) -> argparse.ArgumentParser:
    """Add a subcommand."""
    return commands.add_parser(name, help=summary, description=text, epilog="examples:\n" + examples)


def add_admission(command: argparse.ArgumentParser) -> None:
    """Add what chooses the blocks that are stored."""
    admission = "which blocks are stored: all, or second-use: those that are asked for a second time (default: all)"
    command.add_argument("--admission", default="all", metavar="NAME", help=admission)


def admission_of(args: argparse.Namespace) -> Admission:
    """Return which blocks are to be stored."""
    return parse_choice("--admission", args.admission, get_args(Admission))


def size(option: str, text: str) -> int:
    """Read a size that was given as an option."""
    return parse_size(option, int(text) if text.isascii() and text.isdigit() else text)


def number(text: str) -> int | str:
    """Return a whole number, or the text as it is, to be refused by whoever needs it."""
    try:
        return int(text)
    except ValueError:
        return text

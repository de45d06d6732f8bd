"""What the commands share: reading sizes, the option about what is stored."""

from __future__ import annotations

from typing import get_args

import click

from kvtide.commands import Choice, option
from kvtide.core.config import Admission
from kvtide.options import parse_size


def admission_option() -> click.Option:
    """Return what chooses the blocks that are stored."""
    text = "which blocks are stored: all, or second-use: those that are asked for a second time"
    return option("--admission", text, Choice(get_args(Admission)), default="all")


def size(name: str, text: str) -> int:
    """Read a size that was given as an option."""
    return parse_size(name, int(text) if text.isascii() and text.isdigit() else text)


def rate(name: str, text: str) -> int:
    """Read bytes per second that were given as an option."""
    return size(name, text.removesuffix("/s"))

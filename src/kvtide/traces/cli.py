"""The command lines of `kvtide replay`, `kvtide plan` and `kvtide trace`."""

from __future__ import annotations

import argparse

from kvtide.traces import cli_plan, cli_replay, cli_trace


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the subcommands known."""
    cli_replay.add_parser(subparsers)
    cli_plan.add_parser(subparsers)
    cli_trace.add_parser(subparsers)

"""The command line of `kvtide doctor`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys

from rich.console import Console
from rich.text import Text

from kvtide.doctor.base import Check, Health
from kvtide.doctor.checkup import all_checks
from kvtide.doctor.machine import Machine
from kvtide.doctor.rounds import run_checks
from kvtide.doctor.show import as_json, lines_of, summary_of
from kvtide.doctor.wanted import read_wanted

DESCRIPTION = """\
Look at this machine and say what would keep vLLM with kvtide from serving here, or make it slow, and what to do about
it. Run it with the Python of vLLM. It writes at most 256 MiB to the disks that it measures, and leaves nothing."""

EXAMPLES = """\
examples:
  kvtide doctor                                                 this machine
  kvtide doctor --config '{"host":"64GiB","tiers":[...]}'       and the tiers of a configuration
  kvtide doctor --config kv-transfer-config.json --json         the same from a file, for programs

exit codes: 0 may serve, 1 something has to be mended first, 2 a request that cannot be understood"""

_STYLES = {Health.OK: "green", Health.WARNING: "yellow", Health.BAD: "bold red"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the command known."""
    parser = commands.add_parser(
        "doctor",
        help="look at this machine: what keeps it from serving, and what to do",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--config",
        metavar="FILE_OR_JSON",
        help="what vLLM is given by --kv-transfer-config, or its kv_connector_extra_config",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list of all checks")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run all checks and show what they found."""
    checks = all_checks(Machine(), read_wanted(args.config))
    out, width = Console(highlight=False, soft_wrap=True), shutil.get_terminal_size().columns
    results = []
    for result in run_checks(checks, _tell_slow):
        results.append(result)
        if not args.json:
            health = result.finding.health
            for number, line in enumerate(lines_of(result, width)):
                text = Text(line)
                if not number:
                    text.stylize(_STYLES[health], 0, len(health.value))
                out.print(text)
    if args.json:
        sys.stdout.write(f"{json.dumps(as_json(results))}\n")
    else:
        out.print(Text(summary_of(results, width)))
    return int(any(result.finding.health is Health.BAD for result in results))


def _tell_slow(check: Check) -> None:
    """Say on stderr what is being waited for, terminal or not."""
    sys.stderr.write(f"kvtide doctor: waiting for {check.title}, {check.deadline_s:g} s at most\n")
    sys.stderr.flush()

"""The command line of `kvtide doctor`."""

from __future__ import annotations

import json
import os
import shutil
import sys

from rich.style import Style

from kvtide.commands import Arguments, File, command, exit_codes, flag, option
from kvtide.doctor.asked import read_asked
from kvtide.doctor.base import Check, Health
from kvtide.doctor.checkup import all_checks
from kvtide.doctor.machine import Machine
from kvtide.doctor.rounds import run_checks
from kvtide.doctor.show import as_json, lines_of, summary_of

DESCRIPTION = """\
Look at this machine and say what would keep vLLM with kvtide from serving here, or make it slow, and what to do about
it. Run it with the Python of vLLM. It writes at most 256 MiB to the disks that it measures, and leaves nothing."""

EXAMPLES = """\
  kvtide doctor                                            this machine
  kvtide doctor --config '{"host": "64GiB"}'               and whether it has room for a configuration
  kvtide doctor --config kv-transfer-config.json --json    the same from a file, for programs""" + exit_codes(
    "may serve", "something has to be fixed first"
)

_STYLES = {Health.OK: "green", Health.WARNING: "yellow", Health.BAD: "bold red"}


def run(args: Arguments) -> int:
    """Run all checks and show what they found."""
    checks = all_checks(Machine(), read_asked(args.config))
    width = shutil.get_terminal_size().columns
    results = []
    for result in run_checks(checks, _tell_slow):
        results.append(result)
        if not args.json:
            health = result.finding.health
            first, *others = lines_of(result, width)
            _put(first.replace(health.value, _coloured(health), 1), *others)
    _put(json.dumps(as_json(results)) if args.json else summary_of(results, width))
    return int(any(result.finding.health is Health.BAD for result in results))


def _coloured(health: Health) -> str:
    with_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return Style.parse(_STYLES[health]).render(health.value) if with_colour else health.value


def _put(*lines: str) -> None:
    """Show lines at once: the next check may take a while."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _tell_slow(check: Check) -> None:
    """Say on stderr what is being waited for, terminal or not."""
    sys.stderr.write(f"kvtide doctor: waiting for {check.title}, {check.deadline_s:g} s at most\n")
    sys.stderr.flush()


COMMAND = command(
    "doctor",
    text=DESCRIPTION,
    examples=EXAMPLES,
    params=[
        option(
            "--config",
            "what vLLM is given by --kv-transfer-config, or its kv_connector_extra_config",
            File(),
            metavar="FILE_OR_JSON",
        ),
        flag("--json", "print a JSON list of all checks"),
    ],
    run=run,
)

"""The command line of `kvtide advise`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from kvtide.commands import Arguments, argument, command, exit_codes, flag, option, refuse_written
from kvtide.output import put
from kvtide.top.advise import advise
from kvtide.top.cli import SECONDS
from kvtide.top.evidence import seen_text
from kvtide.top.observe import observe
from kvtide.top.reading import metrics_url
from kvtide.units import seconds_text

ADVISE = """\
Say what would help a running server, or a node: more memory, a tier, another policy, or nothing. It looks at its
/metrics for a while, or takes all that was counted since the start, and says the numbers that each advice rests on."""

ADVISE_EXAMPLES = """\
  kvtide advise localhost:8000                   look for a minute
  kvtide advise localhost:8000 --seconds 600     look for ten
  kvtide advise localhost:8000 --since-start     do not wait
  kvtide advise localhost:9400                   a node with --metrics 9400""" + exit_codes(
    "it has said something", such_as="the server cannot be read"
)


def run(args: Arguments) -> int:
    """Look at a server, and say what would help."""
    if args.since_start:
        refuse_written(("seconds",), "to be left out with --since-start, which does not wait")
    url = metrics_url(args.url)
    seconds = None if args.since_start else args.seconds
    shown, now = observe(url, seconds)
    found = advise(shown, now)
    if args.json:
        put(json.dumps({"url": url, "seconds": shown.seconds, "advice": [asdict(advice) for advice in found]}))
        return 0
    what = "server" if now.node is None else "node"
    over = f"since the {what} was started" if shown.seconds is None else f"in {seconds_text(shown.seconds)}"
    put(f"{seen_text(shown, now)} {over}.")
    for advice in found:
        put(f"\n{advice.do}\n  {advice.because}")
    return 0


COMMAND = command(
    "advise",
    text=ADVISE,
    examples=ADVISE_EXAMPLES,
    params=[
        argument("URL", required=True, kind=click.STRING),
        option("--seconds", "how long to look", SECONDS, default=60.0, metavar="S"),
        flag("--since-start", "take all that the server has counted so far"),
        flag("--json", "print one JSON object"),
    ],
    run=run,
)

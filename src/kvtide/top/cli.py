"""The command line of `kvtide top`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from kvtide.commands import Arguments, Real, Whole, argument, command, exit_codes, flag, misused, option, refuse_written
from kvtide.errors import ConfigError
from kvtide.output import Output, put
from kvtide.progress import waiting
from kvtide.top.as_json import server_json
from kvtide.top.overview import overview
from kvtide.top.paper import Paper
from kvtide.top.reading import metrics_url
from kvtide.top.terminal import keyboard, show
from kvtide.top.view import details
from kvtide.top.watch import Watch, read_once
from kvtide.top.web import serve

SERVERS_MAX = 64
PORT_MAX = 65535
SECONDS = Real(0.2, 86400.0)
"""Of waiting."""
WIDTH_WITHOUT_TERMINAL = 100

TOP = """\
Show what kvtide does in running servers, from their /metrics: where prompt tokens come from (device, host memory,
tiers) over time, what that saves, how fast bytes move, how full pool and tiers are, and why something was not stored
or loaded."""

TOP_EXAMPLES = """\
  kvtide top localhost:8000                      live, in the terminal
  kvtide top localhost:8000 localhost:8001       two servers
  kvtide top localhost:8000 --once --json        one reading, for scripts
  kvtide top localhost:8000 --web 8080           a page on this machine: http://127.0.0.1:8080""" + exit_codes(
    wrong="a server did not answer (--once)"
)


def run(args: Arguments) -> int:
    """Show servers once, in the terminal or as a page."""
    urls = _urls(args.url)
    if args.json and not args.once:
        raise misused("--json works only with --once")
    if args.once and args.web is not None:
        raise misused("--web does not work with --once")
    if args.once:
        refuse_written(("interval",), "to be left out with --once, which reads only once")
        return _once(urls, as_json=args.json)
    if args.web is not None:
        with Watch(urls, args.interval) as watch:
            serve(watch.servers, args.web, args.interval, _say_where)
        return 0
    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        raise misused("the live view needs a terminal that can be drawn on: use --once, or --web PORT")
    with Watch(urls, args.interval) as watch, keyboard() as key:
        show(watch.servers, console, key)
    return 0


def _say_where(url: str) -> None:
    put(f"{url} (Ctrl-C ends it)")
    sys.stdout.flush()


def _once(urls: Sequence[str], *, as_json: bool) -> int:
    with waiting("reading"):
        servers = read_once(urls)
    if as_json:
        put(json.dumps({"servers": [server_json(server) for server in servers]}))
    else:
        shown = Output(width=shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 0)).columns)
        paper = Paper(shown.width, ascii_only=shown.options.ascii_only, live=False)
        if len(servers) > 1:
            shown.print(overview(servers, -1, width=shown.width), "")
        for server in servers:
            shown.print(*details(server, paper), sep="\n")
            if server is not servers[-1]:
                shown.print()
    return int(any(server.state != "up" for server in servers))


def _urls(texts: Sequence[str]) -> list[str]:
    if len(texts) > SERVERS_MAX:
        raise ConfigError("URL", len(texts), f"at most {SERVERS_MAX} servers")
    return list(dict.fromkeys(metrics_url(text) for text in texts))


COMMAND = command(
    "top",
    text=TOP,
    examples=TOP_EXAMPLES,
    params=[
        argument("URL", required=True, kind=click.STRING, many=True),
        option("--interval", "seconds between readings", SECONDS, default=2.0, metavar="S"),
        flag("--once", "read once, print it and leave"),
        flag("--json", "with --once: print one JSON object"),
        option("--web", "serve a page on this machine only; 0: any free port", Whole(0, PORT_MAX), metavar="PORT"),
    ],
    run=run,
)

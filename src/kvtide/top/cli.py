"""The command line of `kvtide top` and `kvtide advise`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console, Group

from kvtide.errors import ConfigError
from kvtide.top.advise import advise
from kvtide.top.as_json import server_json
from kvtide.top.observe import observe
from kvtide.top.reading import metrics_url
from kvtide.top.terminal import keyboard, show
from kvtide.top.view import details, overview
from kvtide.top.watch import Watch, read_once
from kvtide.top.web import serve
from kvtide.units import seconds_text

SERVERS_MAX = 64
PORT_MAX = 65535
WIDTH_WITHOUT_TERMINAL = 100

TOP = """\
Show what kvtide does in running servers, from their /metrics: where prompt tokens come from (device, host memory,
tiers) over time, what that saves, how fast bytes move, how full pool and tiers are, and why something was not stored
or loaded."""

TOP_EXAMPLES = """\
examples:
  kvtide top localhost:8000                      live, in the terminal
  kvtide top localhost:8000 localhost:8001       two servers
  kvtide top localhost:8000 --once --json        one reading, for scripts
  kvtide top localhost:8000 --web 8080           a page on this machine: http://127.0.0.1:8080

exit codes: 0 all is well, 1 a server did not answer (--once), 2 it was asked for something that cannot be done"""

ADVISE = """\
Say what would help a running server: more memory, a tier, another policy, or nothing. It looks at its /metrics for a
while, or takes all that was counted since the start, and says the numbers that each advice rests on."""

ADVISE_EXAMPLES = """\
examples:
  kvtide advise localhost:8000                   look for a minute
  kvtide advise localhost:8000 --seconds 600     look for ten
  kvtide advise localhost:8000 --since-start     do not wait

exit codes: 0 it has said something, 2 the server cannot be read"""


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Make the subcommands known."""
    top = commands.add_parser("top", help="show what running servers do, live", description=TOP, epilog=TOP_EXAMPLES)
    top.add_argument("urls", metavar="URL", nargs="+", help="address of a server, such as localhost:8000")
    top.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between readings (default: 2)")
    top.add_argument("--once", action="store_true", help="read once, print it and leave")
    top.add_argument("--json", action="store_true", help="with --once: print one JSON object")
    top.add_argument("--web", type=int, metavar="PORT", help="serve a page on this machine only; 0: any free port")
    top.set_defaults(run=run_top)
    advice = commands.add_parser(
        "advise", help="say what would help a running server", description=ADVISE, epilog=ADVISE_EXAMPLES
    )
    advice.add_argument("url", metavar="URL", help="address of a server, such as localhost:8000")
    advice.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long to look (default: 60)")
    advice.add_argument("--since-start", action="store_true", help="take all that the server has counted so far")
    advice.add_argument("--json", action="store_true", help="print one JSON object")
    advice.set_defaults(run=run_advise)


def run_top(args: argparse.Namespace) -> int:
    """Show servers once, in the terminal or as a page."""
    urls = _urls(args.urls)
    interval_s = _seconds("--interval", args.interval)
    if args.json and not args.once:
        raise ConfigError("--json", True, "to be used with --once")
    if args.once and args.web is not None:
        raise ConfigError("--web", args.web, "to be used without --once")
    if args.once:
        return _once(urls, as_json=args.json)
    if args.web is not None:
        if not 0 <= args.web <= PORT_MAX:
            raise ConfigError("--web", args.web, f"a port from 0 to {PORT_MAX}")
        with Watch(urls, interval_s) as watch:
            serve(watch.servers, args.web, interval_s, lambda url: _put(f"{url} (Ctrl-C ends it)"))
        return 0
    console = Console()
    if not console.is_terminal:
        raise ConfigError("kvtide top", "no terminal", "a terminal, --web PORT, or --once")
    with Watch(urls, interval_s) as watch, keyboard() as key:
        show(watch.servers, console, key)
    return 0


def run_advise(args: argparse.Namespace) -> int:
    """Look at a server, and say what would help."""
    url = metrics_url(args.url)
    seconds = None if args.since_start else _seconds("--seconds", args.seconds)
    shown, now = observe(url, seconds, sys.stderr)
    found = advise(shown, now)
    if args.json:
        _put(json.dumps({"url": url, "seconds": shown.seconds, "advice": [asdict(advice) for advice in found]}))
        return 0
    over = "since the server was started" if shown.seconds is None else f"in {seconds_text(shown.seconds)}"
    _put(f"{shown.requests:,.0f} requests with {shown.tokens.all:,.0f} prompt tokens {over}.")
    for advice in found:
        _put(f"\n{advice.do}\n  {advice.because}")
    return 0


def _once(urls: Sequence[str], *, as_json: bool) -> int:
    servers = read_once(urls)
    if as_json:
        _put(json.dumps({"servers": [server_json(server) for server in servers]}))
    else:
        console = Console()
        width = console.width if console.is_terminal else WIDTH_WITHOUT_TERMINAL
        shown = Console(width=width)
        if len(servers) > 1:
            shown.print(overview(servers, -1))
        for server in servers:
            shown.print(Group(*details(server, width=width, ascii_only=shown.options.ascii_only)))
    return int(any(server.state != "up" for server in servers))


def _urls(texts: Sequence[str]) -> list[str]:
    if len(texts) > SERVERS_MAX:
        raise ConfigError("URL", len(texts), f"at most {SERVERS_MAX} servers")
    return list(dict.fromkeys(metrics_url(text) for text in texts))


def _seconds(option: str, value: float) -> float:
    least, most = 0.2, 86400.0
    if not math.isfinite(value) or not least <= value <= most:
        raise ConfigError(option, value, f"seconds, from {least:g} to {most:g}")
    return value


def _put(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

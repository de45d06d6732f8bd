"""A Mooncake store of the configuration: whether it answers, and how soon.

Its client holds the interpreter's lock while it connects, for as long as that takes (`kvtide.tiers.mooncake.native`).
So another process asks, which can be ended: `python -m kvtide.doctor.mooncake`, with the tier's options on stdin.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from kvtide.doctor.base import Finding, bad
from kvtide.doctor.latency import judge_latency, round_trip_s
from kvtide.doctor.processes import run_program
from kvtide.errors import ConfigError
from kvtide.tiers.backend import BackendDown

if TYPE_CHECKING:
    from kvtide.tiers.mooncake.options import MooncakeConfig

TIMEOUT_S = 20.0
DEADLINE_MS = 2000
"""For single calls of the client: longer than requests wait, so that slow is told from dead."""
_ADVICE = (
    "start mooncake_master and its metadata server, or correct master, metadata and hostname of this tier; a server of "
    "vLLM would start, and do without the tier until it answers"
)


def check_mooncake(config: MooncakeConfig, timeout_s: float = TIMEOUT_S) -> Finding:
    """Have another process connect and ask a few times."""
    command = [sys.executable, "-m", "kvtide.doctor.mooncake"]
    try:
        _, output = run_program(command, timeout_s, json.dumps(_options(config)))
    except TimeoutError:
        return bad(f"{config.place} has not answered in {timeout_s:g} s", _ADVICE)
    lines = output.splitlines()  # the client has words of its own, before ours
    said = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if "round_trip_s" in said:
        return judge_latency(config.place, float(said["round_trip_s"]), config.deadline_ms)
    problem = said.get("problem", "its client died")
    return bad(f"{config.place} cannot be used: {problem}", said.get("advice", _ADVICE))


def _options(config: MooncakeConfig) -> dict[str, object]:
    """Return the options of a tier like this one that lends the store no memory: it will be gone in a moment."""
    address = config.address
    options = {"master": address.master, "metadata": address.metadata, "hostname": config.hostname}
    options |= {"protocol": config.protocol, "devices": config.devices}
    return {"type": "mooncake", "deadline_ms": DEADLINE_MS, **{name: value for name, value in options.items() if value}}


def _ask(options: dict[str, object]) -> dict[str, object]:
    from kvtide.tiers.mooncake.native import check, connect, disconnect  # noqa: PLC0415 (only in that process)
    from kvtide.tiers.mooncake.options import MooncakeConfig  # noqa: PLC0415 (see above)

    try:
        store = connect(MooncakeConfig.model_validate(options))
        seconds = round_trip_s(lambda: check(store.is_exist("kvtide:doctor")))
        disconnect(store, is_up=True)
    except BackendDown as down:
        return {"problem": str(down)}
    except ConfigError as refusal:  # a server would not start
        return {"problem": "this Python lacks its client", "advice": f"install {refusal.expected}"}
    return {"round_trip_s": seconds}


if __name__ == "__main__":
    signal.alarm(int(TIMEOUT_S) + 1)  # in case that nobody is there any more to end this process
    sys.stdout.write(f"\n{json.dumps(_ask(json.load(sys.stdin)))}\n")
    sys.stdout.flush()
    os._exit(0)  # the client would take leave of a master that is gone, for many seconds

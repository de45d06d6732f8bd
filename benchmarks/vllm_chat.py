"""Conversations on a whole vLLM server, with and without offloading: how long do users wait, and for what.

    python benchmarks/vllm_chat.py [--modes none,kvtide-eager/offloading,lmcache] [--rounds 2] [--out rows.json]
    python benchmarks/vllm_chat.py --definition benchmarks/multi_turn.json --device-tokens 32768

32 conversations of four turns come at random; each begins with 4,000 to 12,000 tokens, and its user thinks before
asking again. The device cache holds a third of them. At most six requests are in the engine at a time; the others queue
in front of it, which is not counted. Llama-3.1-8B's shape with random weights, CUDA graphs for steps of up to 512
tokens (`--graphs decode`: only for those without prompts), the engine in a process of its own. What is measured, in
milliseconds:

- first, follow-up: from sending a request to its first token, for first turns and for later ones (p50, p90, p99)
- between tokens: from each token of an answer to the next one (mean, p99), for answers of later turns: what decoding
  requests wait for others. Answers of first turns are not counted, for beside them long prompts are computed
- all done: seconds from the first request to the last token

Every round has conversations of its own, and is kept for itself in the file of `--out`. The modes of a group (groups
are separated by a slash) are there at the same time and are measured in turn, round by round, so that what the machine
does otherwise meets all of them; those that are not measured are paused. Each has its own host tier as long as its
group runs (not `none`, `device-cache` and `kvtide-node`): a machine of 128 GiB has room for two of 44 GiB, or three of
30. Two groups are compared by what they have in common. A mode may have options of its own: `kvtide-eager+host=8GiB`.
Answers of all modes are compared. `kvtide-eager@turn-4` is kvtide with one thing changed (`vllm_steps.py` has them
all), and `--steps` shows how long steps are, by what they compute. `kvtide-node` is at the node that was started before
(`--node`), where it finds what others there have computed: `kvtide-node,kvtide-node+mode=eager` are two engines at one
node. With `--kill` engines at a node are killed with -9 in the middle of a round, started again, and have the first
round once more.

What is not run by default: `kvtide-node`, and `lmcache-server`, which like `lmcache` needs the package of that name,
and whose server the engine starts at port 15555. What cannot be run is said, and the others are measured.

With `--together` the engines of a group serve at the same time, at most six requests in all of them, and the turns of a
conversation go from one to the next: `--modes none/kvtide-node,kvtide-node --together`. They are one row. With `--kill`
the last of them is killed when half of the last round's answers are there. What it had left is asked again, of the
others, which serve alone until it is back; then the first round is had once more, by all. These are rows of their own.

Answers of two modes may differ where batches have other shapes. With VLLM_BATCH_INVARIANT=1 in the environment vLLM
computes the same for all of them, more slowly: then every difference is a fault.

`--definition` takes the lengths from a file of vLLM's own multi-turn benchmark, and `--scale` makes them longer or
shorter. `multi_turn.json` has the numbers that vLLM comes with: some 80,000 tokens in all. `--small` is a tiny model
for vLLM's CPU build: it shows that everything runs, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from chat_users import OwnEngine, Round, Users
from chat_workload import SMALL, USUAL, Lengths, Turn, all_tokens, conversations, from_definition, longest_tokens
from goals import Goal, at_most, goal_lines
from vllm_common import (
    CONNECTORS,
    GIB,
    GRAPHS,
    NODE,
    PEERS,
    PRELOAD,
    SMALL_MODEL,
    Child,
    FailedError,
    Model,
    end_on_sigterm,
    engine_arguments,
    randomise,
    read_counters,
    read_machine,
    say,
    say_what_does_not_fit,
    wait_for_host,
    write_model,
)
from vllm_steps import VARIANTS, read_steps, watch_steps
from vllm_together import TOGETHER, Served, Together, answer_others

MODES = (
    "none,kvtide-eager,simple-eager/device-cache,kvtide-lazy,simple-lazy/kvtide-eager,offloading/kvtide-eager,lmcache"
)
"""On one GPU of 140 GB beside 128 GiB of host memory: no group has more than two host tiers."""
KILLED_AFTER_S = 3.0
"""In a round of about 20 s."""


@dataclass(frozen=True)
class Settings:
    """What all modes have in common."""

    lengths: Lengths = USUAL
    model: Model = field(default_factory=Model)
    device_tokens: int = 131_072
    host_bytes: int = 44 * GIB
    at_once: int = 6
    spacing_s: float = 0.05
    think_s: float = 0.5
    small: bool = False
    steps: bool = False
    rounds: int = 2
    graphs: str = "all"
    kill: bool = False
    together: bool = False

    def conversations(self, round_number: int) -> list[list[Turn]]:
        """Return the conversations of a round. Round 0 is for warming up, and shorter."""
        seed = 100 + round_number
        found = conversations(self.lengths, seed, self.model.vocab, spacing_s=self.spacing_s, think_s=self.think_s)
        return found if round_number else [turns[:2] for turns in found[:4]]

    def all_rounds(self) -> list[list[list[Turn]]]:
        """Return the conversations of all rounds, that for warming up first."""
        return [self.conversations(number) for number in range(self.rounds + 1)]

    @property
    def kv_bytes(self) -> int:
        """What a host tier has to hold so that nothing is computed twice: the round with the most."""
        return max(map(all_tokens, self.all_rounds())) * self.model.token_bytes


# ---------------------------------------------------------------------- one mode, in processes of its own


def make_engine(mode: str, settings: Settings, folder: Path) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 (takes seconds)
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

    rounds = settings.all_rounds()
    mode = mode.partition("@")[0]
    tokens = settings.device_tokens if mode != "device-cache" else 11 * max(map(all_tokens, rounds)) // 10
    arguments = engine_arguments(
        mode,
        settings.model,
        folder,
        device_tokens=tokens,
        host_bytes=settings.host_bytes,
        graphs=settings.graphs,
        small=settings.small,
    )
    longest = max(map(longest_tokens, rounds)) + 64
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(**arguments, max_model_len=longest, max_num_batched_tokens=8192, disable_log_stats=True)
    )


def serve(mode: str, settings: Settings, folder: Path, orders: Any) -> None:
    """Start an engine of the model in a folder, say how long that took, and then do what is ordered."""
    try:
        asyncio.run(serve_rounds(mode, settings, folder, orders))
    except BaseException:
        orders.send(traceback.format_exc())
        raise


async def serve_rounds(mode: str, settings: Settings, folder: Path, orders: Any) -> None:
    begin_s = time.perf_counter()
    engine = make_engine(mode, settings, folder)
    start_s = time.perf_counter() - begin_s
    orders.send([start_s, (await engine.collective_rpc(read_machine))[0]])
    await engine.collective_rpc(randomise)
    for variant in mode.split("@")[1:]:
        await engine.collective_rpc(VARIANTS[variant])
    if settings.steps:
        await engine.collective_rpc(watch_steps)
    asked = OwnEngine(engine)
    while (order := orders.recv()) is not None:
        if order == TOGETHER:
            await answer_others(asked, orders)
            break
        done = await Users([asked], settings.at_once, order).run(settings.conversations(order))
        if order == 0 and mode.startswith("kvtide"):
            await engine.collective_rpc(wait_for_host)
        orders.send([done])
    counters = (await engine.collective_rpc(read_counters))[0] if mode.startswith("kvtide") else {}
    if settings.steps:
        counters["steps_ms"] = (await engine.collective_rpc(read_steps))[0]
    orders.send([counters])
    engine.shutdown()


# ---------------------------------------------------------------------- all modes


class Comparison:
    """All modes of one run."""

    def __init__(self, settings: Settings, out: Path | None, folder: Path) -> None:
        """`folder` is for the model, one for all: engines at a node tell models apart by where they are."""
        write_model(settings.model, folder)
        self._folder = folder
        self._settings = settings
        self._out = out
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self.rows: list[dict[str, Any]] = []
        self._children: list[Child] = []
        self._group = 0
        self._answers: dict[int, dict[str, list[int]]] = {}
        """Of the first mode that had this round."""
        self.failed: dict[str, str] = {}
        """Modes that could not be measured in any group, and why."""
        self._down: set[str] = set()
        """Of the present group."""

    def run(self, modes: Sequence[str]) -> None:
        """Run a group of modes, in turn."""
        self._begin_group(modes)
        children = {mode: self._start(mode) for mode in modes}
        rounds: dict[str, list[Round]] = {mode: [] for mode in modes}
        starts = {mode: self._ask(mode, child.answer) for mode, child in children.items()}
        for number in range(self._settings.rounds + 1):
            for mode, child in children.items():
                said = self._ask(mode, child.alone(children.values()).order, number)
                if said is not None and number:
                    rounds[mode] += said
                    self._put_row(mode, starts[mode], rounds[mode])
                    waits = summary(said[0].follow_up_ms)
                    told = f"follow-ups {waits['p50']:.0f} ms (p90 {waits['p90']:.0f})"
                    say(f"{mode}: round {number} done in {said[0].done_s:.1f} s, {told}")
        for mode in [mode for mode in modes if not self._is_killed(mode)]:
            children[mode].go_on()
            counters = self._ask(mode, children[mode].order, None)
            if mode not in self._down:
                self._put_row(mode, starts[mode], rounds[mode], counters[0])
        for mode in [mode for mode in modes if self._is_killed(mode) and mode not in self._down]:
            self._put_row(mode, starts[mode], rounds[mode], {})
            self._kill_and_start_again(mode, children[mode].alone(children.values()))
        for child in children.values():
            child.end()

    def run_together(self, modes: Sequence[str]) -> None:
        """Run a group of modes, all at the same time."""
        self._begin_group(modes)
        settings = self._settings
        name = f"{modes[0]}+{len(modes)} together"

        def put(served: Served) -> None:
            self._put_row(name + served.what, served.start, served.rounds, served.counters)

        try:
            Together(modes, self._start, settings.at_once).run(settings.all_rounds(), kill=settings.kill, tell=put)
        except FailedError as error:
            say(f"{name} failed: {error}")
            self.failed[name] = str(error)

    def close(self) -> None:
        """Kill all engines that are still there: whoever waits for the paused ones waits for ever."""
        for child in self._children:
            child.kill()

    def _begin_group(self, modes: Sequence[str]) -> None:
        self._group += 1
        self._down = set()
        say_what_does_not_fit(modes, self._settings.host_bytes, self._settings.kv_bytes)

    def _start(self, mode: str) -> Child:
        self._children.append(Child(self._context, serve, mode, self._settings, self._folder))
        return self._children[-1]

    def _is_killed(self, mode: str) -> bool:
        return self._settings.kill and mode.startswith("kvtide-node")

    def _kill_and_start_again(self, mode: str, child: Child) -> None:
        """Kill an engine among copies, and let the next one have the first round: a row of its own."""
        child.begin(self._settings.rounds + 1)
        time.sleep(KILLED_AFTER_S)
        child.kill()
        again = self._start(mode)
        name = f"{mode} again"
        start = self._ask(name, again.answer)
        self._ask(name, again.order, 0)
        said, counters = self._ask(name, again.order, 1), self._ask(name, again.order, None)
        again.end()
        if name not in self._down:
            self._put_row(name, start, said, counters[0])

    def _ask(self, mode: str, ask: Any, *arguments: Any) -> Any:
        if mode in self._down:
            return None
        try:
            return ask(*arguments)
        except FailedError as error:
            say(f"{mode} failed: {error}")
            self._down.add(mode)
            if all(row["mode"] != mode or row["group"] == self._group for row in self.rows):
                self.failed[mode] = str(error)
            return None

    def _put_row(
        self, mode: str, start: tuple[float, Any], rounds: list[Round], counters: dict[str, Any] | None = None
    ) -> None:
        """Keep what is known of a mode of this group: after each round, and at its end, when it has counted."""
        row: dict[str, Any] = {"mode": mode, "group": self._group, "start_s": start[0], "machine": start[1]}
        row |= numbers(rounds)
        row["rounds"] = [self._round_row(each) for each in rounds]
        row["other_answers"] = sum(each["other_answers"] for each in row["rounds"])
        row["counters"] = counters or {}
        same = (mode, self._group)
        self.rows = [*(other for other in self.rows if (other["mode"], other["group"]) != same), row]
        if counters is not None:
            self.failed.pop(mode, None)
        if self._out is not None:
            self._out.write_text(json.dumps(self.as_json(), indent=1))

    def _round_row(self, one: Round) -> dict[str, Any]:
        expected = self._answers.setdefault(one.number, one.answers)
        differing = sum(expected[turn] != answer for turn, answer in one.answers.items())
        said = {"number": one.number, "other_answers": differing, "asked_again": one.asked_again}
        return said | numbers([one])

    def as_json(self) -> dict[str, Any]:
        """Return everything."""
        settings = asdict(self._settings)
        found = [goal.as_json() for goal in goals(self.rows)]
        return {"settings": settings, "rows": self.rows, "failed": self.failed, "goals": found}

    def table(self) -> str:
        """Return everything as text."""
        width = max([22, *(len(row["mode"]) + 1 for row in self.rows)])
        percentiles = "".join(f"{name:>8}" for name in ("p50", "p90", "p99"))
        lines = [
            f"{'':{width}}{'first ms':>24}{'follow-up ms':>24}{'between tokens ms':>20}{'all done':>10}{'start':>8}"
            f"{'other':>9}",
            f"{'':{width}}{percentiles * 2}{'mean':>12}{'p99':>8}{'s':>10}{'s':>8}{'answers':>9}",
        ]
        for row in self.rows:
            waits = [row[name][at] for name in ("first_ms", "follow_up_ms") for at in ("p50", "p90", "p99")]
            between = row["between_ms"]
            lines.append(
                f"{row['mode']:{width}}{''.join(f'{value:8.0f}' for value in waits)}{between['mean']:12.2f}"
                f"{between['p99']:8.1f}{row['done_s']:10.2f}{row['start_s']:8.1f}{row['other_answers']:9}"
            )
        lines += [f"{row['mode']}: {json.dumps(row['counters'])}" for row in self.rows if row["counters"]]
        return "\n".join([*lines, *goal_lines(goals(self.rows), small=self._settings.small)])


BESIDE_PEERS: dict[str, tuple[Callable[[Any], float], float]] = {
    "follow-up p50": (lambda row: row["follow_up_ms"]["p50"], 0.6),
    "follow-up p90": (lambda row: row["follow_up_ms"]["p90"], 0.5),
    "all done": (lambda row: row["done_s"], 0.93),
    "between tokens, mean": (lambda row: row["between_ms"]["mean"], 1.0),
    "between tokens, p99": (lambda row: row["between_ms"]["p99"], 1.0),
}
"""What is compared with the best peer, and the goal."""
LAZY_P90_MAX = 1.3
"""Of eager's."""


def goals(rows: Sequence[Any]) -> list[Goal]:
    """Compare kvtide with the best peer: each peer with kvtide of its own group, or of the first one that has it."""
    ours = {row["mode"]: None for row in rows if row["mode"].startswith("kvtide-eager") and "@" not in row["mode"]}
    peers = [row for row in rows if row["mode"].split("+")[0] in PEERS]
    found = []
    for mode in ours if peers else ():  # dicts keep their order
        for what, (pick, bound) in BESIDE_PEERS.items():
            ratios = [(pick(beside(rows, mode, peer)) / max(pick(peer), 1e-9), peer["mode"]) for peer in peers]
            ratio, peer_mode = max(ratios)
            found.append(at_most(f"{mode}, {what}, of the best peer ({peer_mode})", ratio, bound))
    for lazy in [row for row in rows if row["mode"] == "kvtide-lazy" and "kvtide-eager" in ours]:
        ratio = lazy["follow_up_ms"]["p90"] / max(beside(rows, "kvtide-eager", lazy)["follow_up_ms"]["p90"], 1e-9)
        found.append(at_most("kvtide-lazy, follow-up p90, of kvtide-eager", ratio, LAZY_P90_MAX))
    return found


def beside(rows: Sequence[Any], mode: str, other: Any) -> Any:
    """Return the row of a mode that was measured in the group of another row, or the first one there is."""
    return min((row for row in rows if row["mode"] == mode), key=lambda row: row["group"] != other["group"])


def numbers(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return what was measured in some rounds, all of them together."""
    times = ("first_ms", "follow_up_ms", "between_ms", "between_first_ms")
    found: dict[str, Any] = {
        name: summary([value for each in rounds for value in getattr(each, name)]) for name in times
    }
    return found | {"done_s": statistics.fmean(each.done_s for each in rounds)}


def summary(values: list[float]) -> dict[str, float]:
    """Return mean and percentiles."""
    if len(values) < 2:
        values = (values or [0.0]) * 2
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    mean = statistics.fmean(values)
    return {"mean": mean, "p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(values), "count": len(values)}


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return what all modes have in common."""
    more = {name: getattr(arguments, name) for name in ("steps", "rounds", "graphs", "kill", "together")}
    if arguments.small:
        settings = Settings(SMALL, SMALL_MODEL, 640, 64 << 20, 2, spacing_s=0.01, think_s=0.01, small=True, **more)
    else:
        model, host_bytes = Model(kv_heads=arguments.kv_heads), arguments.host_gib * GIB
        settings = Settings(model=model, host_bytes=host_bytes, at_once=arguments.at_once, **more)
    if arguments.definition:
        settings = replace(settings, lengths=from_definition(arguments.definition, arguments.scale))
    if arguments.device_tokens:
        settings = replace(settings, device_tokens=arguments.device_tokens)
    return settings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default=MODES, help=f"which of {', '.join(CONNECTORS)} to run (default: {MODES})")
    parser.add_argument("--rounds", type=int, default=2, help="how often each mode is measured (default: 2)")
    parser.add_argument("--at-once", type=int, default=6, help="requests in the engine at a time (default: 6)")
    parser.add_argument(
        "--host-gib",
        type=int,
        default=44,
        help="size of each host tier in GiB (default: 44, of which a machine of 128 GiB has room for two in a group)",
    )
    parser.add_argument("--kv-heads", type=int, default=8, help="KV heads of the model (default: 8)")
    parser.add_argument("--graphs", choices=GRAPHS, default="all", help="steps that run as CUDA graphs (default: all)")
    parser.add_argument("--node", default="", help="the socket of the node for the mode kvtide-node")
    parser.add_argument("--kill", action="store_true", help="kill engines at a node with -9, and start them again")
    parser.add_argument("--together", action="store_true", help="the engines of a group serve at the same time")
    parser.add_argument("--definition", type=Path, help="lengths as in this file of vLLM's multi-turn benchmark")
    parser.add_argument("--scale", type=float, default=1.0, help="times the tokens of a definition (default: 1)")
    parser.add_argument("--device-tokens", type=int, help="room in the device cache (default: 131072; --small: 640)")
    parser.add_argument("--out", type=Path, help="keep all numbers in this file, written after each round")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--steps", action="store_true", help="also show how long the engine's steps are")
    parser.add_argument("--small", action="store_true", help="a tiny model, for vLLM's CPU build")
    arguments = parser.parse_args()
    groups = [group.split(",") for group in arguments.modes.split("/")]
    names = {mode.partition("@")[0].split("+")[0] for group in groups for mode in group}
    if unknown := names - CONNECTORS.keys():
        parser.error(f"--modes: {', '.join(sorted(unknown))}: expected some of {', '.join(CONNECTORS)}")
    if unknown := {variant for group in groups for mode in group for variant in mode.split("@")[1:]} - VARIANTS.keys():
        parser.error(f"--modes: {', '.join(sorted(unknown))}: expected some of {', '.join(VARIANTS)} behind the @")
    if "kvtide-node" in names and not arguments.node:
        parser.error("--modes: kvtide-node: expected a --node, started before with `kvtide node`")
    if arguments.kill and "kvtide-node" not in names:
        parser.error("--kill: expected the mode kvtide-node: only a node outlives engines")
    if arguments.together and all(len(group) == 1 for group in groups):
        parser.error("--together: expected a group of several modes: kvtide-node,kvtide-node")
    os.environ |= {"PYTHONHASHSEED": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # functions are sent to workers
    os.environ[NODE] = arguments.node
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if arguments.small:  # by itself vLLM's CPU build gives engines with a connector other cores than those without
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(min(os.sched_getaffinity(0))))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
    end_on_sigterm()
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(settings_of(arguments), arguments.out, Path(folder))
        with closing(comparison):
            for group in groups:
                run = comparison.run_together if arguments.together and len(group) > 1 else comparison.run
                run(group)
                if group is not groups[-1]:
                    say(f"so far:\n{comparison.table()}")
    print(json.dumps(comparison.as_json()) if arguments.json else comparison.table())
    return 0 if not comparison.failed and all(row["other_answers"] == 0 for row in comparison.rows) else 1


if __name__ == "__main__":
    sys.exit(main())

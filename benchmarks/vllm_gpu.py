"""A whole vLLM server with and without offloading: how long does a document wait that was seen before.

    python benchmarks/vllm_gpu.py [--kv-heads 8] [--modes none,device-cache,kvtide-eager/offloading] [--out rows.json]
    python benchmarks/vllm_gpu.py --start

Documents of 16,000 tokens are visited in turn; the device cache holds four of the twelve, the host tier all of them.
Llama-3.1-8B's shape with random weights, CUDA graphs for steps of up to 512 tokens. What is measured, or what of it
`--phases` names:

- first visit, revisit: TTFT of one document at a time, median
- all at once: seconds until all documents, asked together, have answered with 32 tokens each
- waves: the same with everything in the device cache, but asked about no more documents at a time than fit where there
  is offloading. Nothing is copied, so nobody who has room for so many at a time can be faster
- no reuse: the same with documents that nobody has seen

Each mode is a server of its own, in fresh processes. The modes of a group (groups are separated by a slash) are there
at the same time and are measured in turn, phase by phase, so that what the machine does otherwise meets all of them;
those that are not measured are paused. Host and GPU memory have to suffice for the whole group. A mode may have options
of its own: `kvtide-eager+host=8GiB`. `kvtide-node` is at the node that was started before (`--node`).
`kvtide-eager@report-late` is kvtide with one thing changed (`vllm_steps.py` has them all), and `--steps` shows how long
the steps of each phase are, by what they compute.

The ratio behind a revisit is to the limit: what it takes with everything in the device cache, and one large pinned copy
of the document's KV. Outputs of all modes are compared. Why blocks were not stored or tokens not loaded is printed for
kvtide. `--start` measures something else: seconds until an engine with a host tier of 64 GiB can take requests.
`--small` is a tiny model for vLLM's CPU build: it shows that everything runs, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from goals import Goal, at_least, at_most, goal_lines
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
    copy_gbps,
    end_on_sigterm,
    engine_arguments,
    randomise,
    read_counters,
    say,
    say_what_does_not_fit,
    wait_for_host,
    write_model,
)
from vllm_steps import VARIANTS, read_steps, watch_steps

MANY_HEADS = 8
"""KV heads, for which it was said what packing has to save."""
MODES = "none,device-cache,kvtide-eager/kvtide-lazy,offloading/simple-eager,simple-lazy"
"""On one GPU of 140 GB beside 128 GiB of host memory: no group has more than two host tiers."""
START_HOST_BYTES = 64 * GIB
PHASES = {
    "first": "first_ms",
    "revisit": "revisit_ms",
    "at-once": "at_once_s",
    "waves": "waves_s",
    "no-reuse": "no_reuse_s",
}


@dataclass(frozen=True)
class Scale:
    """Sizes of model and workload."""

    documents: int = 12
    document_tokens: int = 16_000
    device_tokens: int = 65_536
    host_bytes: int = 40 << 30
    model: Model = field(default_factory=Model)
    small: bool = False
    steps: bool = False
    graphs: str = "all"

    @property
    def document_bytes(self) -> int:
        """Bytes of the KV of one document."""
        return self.document_tokens * self.model.token_bytes


SMALL = Scale(documents=4, document_tokens=256, device_tokens=640, host_bytes=64 << 20, model=SMALL_MODEL, small=True)


@dataclass
class Result:
    """What one mode did. Times of all rounds."""

    mode: str
    start_s: float = 0.0
    starts_s: list[float] = field(default_factory=list)
    """With `--start`."""
    warm_ms: float = 0.0
    """The first request of all: whatever is made or compiled on first use."""
    first_ms: list[float] = field(default_factory=list)
    revisit_ms: list[float] = field(default_factory=list)
    at_once_s: list[float] = field(default_factory=list)
    waves_s: list[float] = field(default_factory=list)
    no_reuse_s: list[float] = field(default_factory=list)
    outputs: dict[str, list[list[int]]] = field(default_factory=dict)
    """All answers, by phase and round."""
    counters: dict[str, Any] = field(default_factory=dict)
    """kvtide's own, at the end."""
    group: int = 0

    def median(self, name: str) -> float:
        """Return the median of a measurement; 0 if there is none."""
        times: list[float] = getattr(self, name)
        return statistics.median(times or [0.0])


# ---------------------------------------------------------------------- one mode, in processes of its own


def make_engine(mode: str, scale: Scale, folder: Path) -> Any:
    from vllm import LLM  # noqa: PLC0415 (takes seconds)

    tokens = scale.device_tokens if mode != "device-cache" else scale.documents * (scale.document_tokens + 64)
    arguments = engine_arguments(
        mode.partition("@")[0],
        scale.model,
        folder,
        device_tokens=tokens,
        host_bytes=scale.host_bytes,
        graphs=scale.graphs,
        small=scale.small,
    )
    return LLM(
        **arguments,
        max_model_len=scale.document_tokens + 64,
        max_num_batched_tokens=16_384,
        disable_log_stats=True,
    )


def documents(scale: Scale, seed: int) -> list[list[int]]:
    import random  # noqa: PLC0415 (only here)

    draw = random.Random(seed)  # noqa: S311 (not for secrets)
    return [
        [draw.randrange(2, scale.model.vocab) for _ in range(scale.document_tokens)] for _ in range(scale.documents)
    ]


class Visitor:
    """Asks an engine about documents, and remembers all answers."""

    def __init__(self, engine: Any, scale: Scale) -> None:
        self._engine = engine
        self._scale = scale
        self._known = documents(scale, seed=1)
        self._firsts = self._no_reuses = 0
        self.outputs: dict[str, list[list[int]]] = {}
        self._answers: list[list[int]] = []

    def run(self, phase: str) -> list[float]:
        """Run a phase; return its times."""
        times: list[float] = getattr(self, phase)()
        number = sum(key.startswith(phase) for key in self.outputs)
        self.outputs[f"{phase} {number}"], self._answers = self._answers, []
        return times

    def ask(self, prompts: list[list[int]], max_tokens: int) -> float:
        """Return the seconds until all prompts were answered."""
        from vllm import SamplingParams  # noqa: PLC0415 (takes seconds)

        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        begin_s = time.perf_counter()
        answers = self._engine.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        spent_s = time.perf_counter() - begin_s
        self._answers += [list(answer.outputs[0].token_ids) for answer in answers]
        return spent_s

    def warm_ms(self) -> list[float]:
        """Ask about two documents, for what is made or compiled on first use; return the time of the first."""
        return [self.ask([document], 1) * 1e3 for document in documents(self._scale, seed=0)[:2]]

    def first_ms(self) -> list[float]:
        """Return the TTFT of each new document, asked alone. The first ones are those that others come back to."""
        self._firsts += 1
        new = self._known if self._firsts == 1 else documents(self._scale, 1000 + self._firsts)
        return [self.ask([document], 1) * 1e3 for document in new]

    def revisit_ms(self) -> list[float]:
        """Return the TTFT of each known document, asked alone."""
        return [self.ask([document], 1) * 1e3 for document in self._known]

    def at_once_s(self) -> list[float]:
        """Return the time of all known documents together."""
        return [self.ask(self._known, 32)]

    def waves_s(self) -> list[float]:
        """Return the time of all known documents, as many together as fit on a device that offloads."""
        size = self._scale.device_tokens // self._scale.document_tokens
        return [sum(self.ask(self._known[at : at + size], 32) for at in range(0, len(self._known), size))]

    def no_reuse_s(self) -> list[float]:
        """Return the time of as many new ones."""
        self._no_reuses += 1
        return [self.ask(documents(self._scale, 1 + self._no_reuses), 32)]


def serve(mode: str, scale: Scale, orders: Any) -> None:
    """Start an engine, say how long that took, and then do what is ordered."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_model(scale.model, Path(folder))
            begin_s = time.perf_counter()
            engine = make_engine(mode, scale, Path(folder))
            orders.send([time.perf_counter() - begin_s])
        engine.collective_rpc(randomise)
        for variant in mode.split("@")[1:]:
            engine.collective_rpc(VARIANTS[variant])
        visitor = Visitor(engine, scale)
        steps_ms = {}
        while (phase := orders.recv()) is not None:
            if scale.steps:
                engine.collective_rpc(watch_steps)
            times = visitor.run(phase)
            if scale.steps:
                steps_ms[phase] = engine.collective_rpc(read_steps)[0]
            if phase == "warm_ms" and mode.startswith("kvtide"):
                engine.collective_rpc(wait_for_host)
            orders.send(times)
        counters = engine.collective_rpc(read_counters)[0] if mode.startswith("kvtide") else {}
        counters |= {"steps_ms": steps_ms} if steps_ms else {}
        orders.send((visitor.outputs, counters))
        engine.llm_engine.engine_core.shutdown()
    except BaseException:
        orders.send(traceback.format_exc())
        raise


# ---------------------------------------------------------------------- all modes


class Comparison:
    """All modes, and what is known of them so far."""

    def __init__(self, arguments: argparse.Namespace, scale: Scale) -> None:
        self._scale = scale
        self._rounds: int = arguments.rounds
        self._phases = {PHASES[name] for name in arguments.phases.split(",")}
        self._out: Path | None = arguments.out
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self.results: dict[str, Result] = {}
        """By mode; one that is in several groups has the number of the group behind it from the second one on."""
        self.failed: dict[str, str] = {}
        self._children: list[Child] = []
        self._group = 0
        self.gbps = 0.0

    def measure_limit(self) -> None:
        """Measure one large copy."""
        child = self._start(copy_gbps)
        self.gbps = child.answer()[0]
        child.end()

    def run(self, modes: list[str]) -> None:
        """Run a group of modes, in turn."""
        self._group += 1
        say_what_does_not_fit(modes, self._scale.host_bytes, self._scale.documents * self._scale.document_bytes)
        names = {mode if mode not in self.results else f"{mode} ({self._group})": mode for mode in modes}
        children = {name: self._start(serve, mode, self._scale) for name, mode in names.items()}
        for name, child in children.items():
            self.results[name] = Result(name, group=self._group)
            self._try(name, child.answer, "start_s")
        # In this order: what has no reuse drives everything else out of the host tier.
        phases = ["first_ms", *["revisit_ms", "at_once_s", "waves_s"] * self._rounds]
        phases += ["first_ms"] * (self._rounds - 1) + ["no_reuse_s"] * self._rounds
        for phase in ["warm_ms", *(phase for phase in phases if phase in self._phases)]:
            for name, child in children.items():
                if phase == "waves_s" and names[name] != "device-cache":
                    continue
                self._try(name, partial(child.alone(children.values()).order, phase), phase)
        for name, child in children.items():
            child.go_on()
            self._try(name, partial(child.order, None), "outputs")
        for child in children.values():
            child.end()

    def start_up(self, modes: list[str]) -> None:
        """Start each mode alone, in turn, and ask one question."""
        for _ in range(self._rounds):
            for mode in modes:
                child = self._start(serve, mode, self._scale)
                result = self.results.setdefault(mode, Result(mode))
                try:
                    start_s, first_ms = child.answer()[0], child.order("warm_ms")[0]
                    result.counters = child.order(None)[1]
                except FailedError as error:
                    say(f"{mode} failed: {error}")
                    self.failed[mode] = str(error)
                    child.kill()
                    continue
                result.starts_s.append(start_s)
                result.first_ms.append(first_ms)
                child.end()
                say(f"{mode}: start {start_s:.2f} s, first request {first_ms:.0f} ms")

    def close(self) -> None:
        """Kill all engines that are still there: whoever waits for the paused ones waits for ever."""
        for child in self._children:
            child.kill()

    def _start(self, target: Callable[..., None], *arguments: Any) -> Child:
        self._children.append(Child(self._context, target, *arguments))
        return self._children[-1]

    def _try(self, mode: str, ask: Callable[[], Any], name: str) -> None:
        if mode in self.failed:
            return
        try:
            said = ask()
        except FailedError as error:
            say(f"{mode} failed: {error}")
            self.failed[mode] = str(error)
            return
        result = self.results[mode]
        if name == "outputs":
            result.outputs, result.counters = said
        elif name in {"start_s", "warm_ms"}:
            setattr(result, name, said[0])
        else:
            getattr(result, name).extend(said)
        if name != "outputs":
            median = statistics.median(said)
            say(f"{mode}: {name} {median:.2f} ({min(said):.2f} to {max(said):.2f})")
        if self._out is not None:
            self._out.write_text(json.dumps(self.as_json(times=True), indent=1))

    @property
    def limit_ms(self) -> float:
        """What a revisit takes at least; 0 if that was not measured."""
        cached = self.results.get("device-cache")
        if cached is None or not self.gbps:
            return 0.0
        return cached.median("revisit_ms") + self._scale.document_bytes / self.gbps / 1e6

    def same(self, result: Result) -> bool:
        """Whether a mode gave the same answers as the others."""
        first = next((other.outputs for other in self.results.values() if other.outputs), {})
        common = first.keys() & result.outputs.keys()
        alike = bool(common) and all(result.outputs[key] == first[key] for key in common)
        return alike and result.mode not in self.failed

    def as_json(self, *, times: bool = False) -> dict[str, Any]:
        """Return everything."""
        names = ("first_ms", "revisit_ms", "at_once_s", "waves_s", "no_reuse_s")
        rows = []
        for result in self.results.values():
            row: dict[str, Any] = {"mode": result.mode, "start_s": result.start_s, "warm_ms": result.warm_ms}
            row |= {name: result.median(name) for name in names}
            row |= {"same_outputs": self.same(result), "counters": result.counters}
            rows.append(row | ({"times": {name: asdict(result)[name] for name in names}} if times else {}))
        return {
            "kv_heads": self._scale.model.kv_heads,
            "copy_gbps": self.gbps,
            "limit_ms": self.limit_ms,
            "rows": rows,
            "failed": self.failed,
            "goals": [goal.as_json() for goal in self.goals()],
        }

    def goals(self) -> list[Goal]:
        """Compare kvtide with none, with the limit and with the best peer, as far as they are known."""
        ours = [result for mode, result in self.results.items() if mode.startswith("kvtide") and "@" not in mode]
        return [goal for result in ours for goal in self._goals(result)]

    def _goals(self, ours: Result) -> Iterator[Goal]:
        for name, what in (("first_ms", "first visit"), ("no_reuse_s", "no reuse")):
            ratio, _ = self._ratio(ours, name, ["none"])
            if ratio:
                yield at_most(f"{ours.mode}, {what}, of none", ratio, 1.01)
        revisit_ms = ours.median("revisit_ms")
        if revisit_ms and self.limit_ms:
            yield at_most(f"{ours.mode}, revisit, of the limit", revisit_ms / self.limit_ms, 1.05)
        ratio, peer = self._ratio(ours, "at_once_s", PEERS)
        if ratio:
            yield at_most(f"{ours.mode}, all at once, of the best peer ({peer})", ratio, 0.75)
        plain = self._beside(ours, ["kvtide-eager"])
        if "packing" in ours.mode and revisit_ms and plain and self._scale.model.kv_heads == MANY_HEADS:
            less_ms = plain[0].median("revisit_ms") - revisit_ms
            yield at_least(f"{ours.mode}, revisit, ms less than plain", less_ms, 6.0)

    def _ratio(self, ours: Result, name: str, others: Sequence[str]) -> tuple[float, str]:
        """Return how long ours took as a multiple of the fastest of some others, and which that is; 0 without any."""
        times = [(other.median(name), other.mode) for other in self._beside(ours, others)]
        least, mode = min((each for each in times if each[0]), default=(0.0, ""))
        return (ours.median(name) / least, mode) if least else (0.0, "")

    def _beside(self, ours: Result, modes: Sequence[str]) -> list[Result]:
        """Return the results of some modes; of those in several groups, that of the same group if there is one."""
        found: dict[str, Result] = {}
        for result in self.results.values():
            name, _, option = result.mode.partition(" (")[0].partition("+")
            is_one = name in modes and (not option or option.startswith("host="))
            if is_one and (name not in found or result.group == ours.group):
                found[name] = result
        return list(found.values())

    def table(self) -> str:
        """Return everything as text."""
        width = max([24, *(len(mode) + 1 for mode in self.results)])
        lines = [
            f"{self._scale.model.kv_heads} KV heads, one large copy {self.gbps:.1f} GB/s, limit {self.limit_ms:.1f} ms",
            f"{'':{width}}{'first ms':>10}{'revisit ms':>12}{'of limit':>10}{'at once s':>11}{'waves s':>9}"
            f"{'no reuse s':>12}{'start s':>9}{'same output':>13}",
        ]
        for result in self.results.values():
            revisit_ms = result.median("revisit_ms")
            ratio = f"{revisit_ms / self.limit_ms:.2f}" if self.limit_ms else "-"
            lines.append(
                f"{result.mode:{width}}{result.median('first_ms'):10.1f}{revisit_ms:12.1f}{ratio:>10}"
                f"{result.median('at_once_s'):11.2f}{result.median('waves_s'):9.2f}{result.median('no_reuse_s'):12.2f}"
                f"{result.start_s:9.1f}"
                f"{'yes' if self.same(result) else 'NO':>13}"
            )
        counted = [result for result in self.results.values() if result.counters]
        lines += [f"{result.mode}: {json.dumps(result.counters)}" for result in counted]
        return "\n".join([*lines, *goal_lines(self.goals(), small=self._scale.small)])


def compare(arguments: argparse.Namespace, scale: Scale) -> int:
    groups = [group.split(",") for group in arguments.modes.split("/")]
    with closing(Comparison(arguments, scale)) as comparison:
        comparison.measure_limit()
        for group in groups:
            comparison.run(group)
            if group is not groups[-1]:
                say(f"so far:\n{comparison.table()}")
    print(json.dumps(comparison.as_json()) if arguments.json else comparison.table())
    return 0 if not comparison.failed and all(map(comparison.same, comparison.results.values())) else 1


def start_up(arguments: argparse.Namespace, scale: Scale) -> int:
    with closing(Comparison(arguments, scale)) as comparison:
        comparison.start_up(arguments.modes.split(","))
    rows = [
        {"mode": result.mode, "start_s": result.median("starts_s"), "first_request_ms": result.median("first_ms")}
        for result in comparison.results.values()
        if result.starts_s
    ]
    starts_s = {result.mode: result.median("starts_s") for result in comparison.results.values() if result.starts_s}
    if arguments.json:
        print(json.dumps({"host_gib": scale.host_bytes / GIB, "rows": rows, "failed": comparison.failed}))
    else:
        print(f"host tier of {scale.host_bytes / GIB:.1f} GiB, {arguments.rounds} starts each, medians")
        for row in rows:
            print(f"{row['mode']:24} start {row['start_s']:.2f} s, first request {row['first_request_ms']:.0f} ms")
        goals = [
            at_most(f"{mode}, s more to start than none", start_s - starts_s["none"], 1.0)
            for mode, start_s in starts_s.items()
            if "none" in starts_s and mode != "none"
        ]
        print("\n".join(goal_lines(goals, small=scale.small)))
    return 1 if comparison.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-heads", type=int, default=8, help="KV heads of the model (default: 8)")
    parser.add_argument("--modes", help=f"which to run (default: {MODES}; with --start: none,kvtide-eager)")
    parser.add_argument("--rounds", type=int, default=2, help="how often each mode is measured (default: 2)")
    parser.add_argument("--phases", default=",".join(PHASES), help="what to measure (default: all of %(default)s)")
    parser.add_argument("--graphs", choices=GRAPHS, default="all", help="steps that run as CUDA graphs (default: all)")
    parser.add_argument("--host-gib", type=int, default=40, help="size of each host tier in GiB (default: 40)")
    parser.add_argument("--node", default="", help="the socket of the node for the mode kvtide-node")
    parser.add_argument("--start", action="store_true", help="measure the start with a large host tier instead")
    parser.add_argument("--out", type=Path, help="keep all numbers in this file, written after each phase")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--steps", action="store_true", help="show how long steps take; the last round of each phase")
    parser.add_argument("--small", action="store_true", help="a tiny model, for vLLM's CPU build")
    arguments = parser.parse_args()
    arguments.modes = arguments.modes or ("none,kvtide-eager" if arguments.start else MODES)
    modes = [mode.split("@") for group in arguments.modes.split("/") for mode in group.split(",")]
    if unknown := {mode.split("+")[0] for mode, *_ in modes} - CONNECTORS.keys():
        parser.error(f"--modes: {', '.join(sorted(unknown))}: expected some of {', '.join(CONNECTORS)}")
    if unknown := {variant for _, *variants in modes for variant in variants} - VARIANTS.keys():
        parser.error(f"--modes: {', '.join(sorted(unknown))}: expected some of {', '.join(VARIANTS)} behind the @")
    if unknown := set(arguments.phases.split(",")) - PHASES.keys():
        parser.error(f"--phases: {', '.join(sorted(unknown))}: expected some of {', '.join(PHASES)}")
    if any(mode.startswith("kvtide-node") for mode, *_ in modes) and not arguments.node:
        parser.error("--modes: kvtide-node: expected a --node, started before with `kvtide node`")
    os.environ |= {"PYTHONHASHSEED": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # functions are sent to workers
    os.environ[NODE] = arguments.node
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
    end_on_sigterm()
    scale = (
        SMALL
        if arguments.small
        else Scale(model=Model(kv_heads=arguments.kv_heads), host_bytes=arguments.host_gib * GIB)
    )
    scale = replace(scale, steps=arguments.steps, graphs=arguments.graphs)
    if arguments.start:
        return start_up(arguments, scale if scale.small else replace(scale, host_bytes=START_HOST_BYTES))
    return compare(arguments, scale)


if __name__ == "__main__":
    sys.exit(main())

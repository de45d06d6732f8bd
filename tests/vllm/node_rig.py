"""Real engines and a real node, each in processes of their own that can be killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvtide.node.ask import status_of
from kvtide.node.errors import NodeError
from tests.vllm.digests import digest
from tests.vllm.llm import Result

ROOT = Path(__file__).parents[2]
START_S = 300.0
ANSWER_S = 120.0
SOON_S = 60.0
"""What takes a second may take many on a busy machine."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end_s, f"it does not happen: {what}"
        time.sleep(0.02)


class NodeProcess:
    """`kvtide node`."""

    def __init__(self, path: Path, log: Path, memory: str = "16MiB") -> None:
        self.path = path
        self._log = log
        command = [sys.executable, "-m", "kvtide", "node", "--memory", memory, "--socket", str(path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        with log.open("a") as lines:
            self.process = subprocess.Popen(command, stderr=lines, env=environment)  # noqa: S603 (our own words)
        wait_until(self.answers, "the node answers")

    def answers(self) -> bool:
        assert self.process.poll() is None, self.lines()
        try:
            self.status()
        except NodeError:
            return False
        return True

    def status(self) -> dict[str, Any]:
        return status_of(self.path, SOON_S)

    def blocks(self) -> list[str]:
        """Return digests of what is in the slots of its only arena, read from its own memory."""
        [space] = self.status()["namespaces"]
        [arena] = space["arenas"]
        links = Path(f"/proc/{self.process.pid}/fd").iterdir()
        [descriptor] = [link for link in links if "memfd:kvtide" in os.readlink(link)]
        with descriptor.open("rb") as memory:
            slots = [memory.read(arena["slot_bytes"]) for _ in range(space["slots"])]
        return sorted(digest(slot) for slot in slots if any(slot))

    def lines(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """End it as nothing but the system can."""
        self.process.kill()
        self.process.wait(SOON_S)

    def stop(self) -> int:
        """End it in good order."""
        self.process.terminate()
        return self.process.wait(SOON_S)


class EngineProcess:
    """An engine. With `ranks` its workers are processes of their own, otherwise it is all one process."""

    def __init__(self, model: Path, node: Path | None, log: Path, ranks: int = 0) -> None:
        self._log = log
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        told = (str(model), str(ranks), "none" if node is None else str(node), str(read), str(write))
        environment = {
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "VLLM_LOGGING_LEVEL": "INFO",
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(["nobind"] if ranks < 2 else map(str, range(ranks))),
        }
        with log.open("a") as lines:
            self.process = subprocess.Popen(  # noqa: S603 (our own words)
                [sys.executable, "-m", "tests.vllm.node_engine", *told],
                cwd=ROOT,
                env=environment,
                pass_fds=(read, write),
                stdout=lines,
                stderr=subprocess.STDOUT,
            )
        os.close(read)
        os.close(write)
        self._rest = b""

    def wait_for_start(self) -> EngineProcess:
        assert "pid" in self.answer(START_S)
        return self

    def order(self, **order: Any) -> None:
        os.write(self._write, json.dumps(order).encode() + b"\n")

    def answer(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the next answer."""
        end_s = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"no answer: {self.lines()[-4000:]}"
            got = os.read(self._read, 1 << 16)
            assert got, f"it has ended: {self.lines()[-4000:]}"
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **order: Any) -> dict[str, Any]:
        self.order(**order)
        return self.answer()

    def say(self, *prompts: Sequence[int], max_tokens: int = 4, forget: bool = True, together: bool = False) -> Said:
        return Said(self.ask(say=prompts, max_tokens=max_tokens, forget=forget, together=together, drain=True))

    def begin(self, *prompts: Sequence[int], max_tokens: int = 4) -> None:
        """Say prompts without waiting for the answer."""
        self.order(say=prompts, max_tokens=max_tokens, forget=False, together=True, drain=False)

    def lines(self) -> str:
        return self._log.read_text(errors="replace")

    def workers(self) -> list[int]:
        """Return the processes of its ranks."""
        return [rank["pid"] for rank in self.ask(look=True)["ranks"]]

    def kill(self) -> None:
        """End it, and what it has started, as nothing but the system can."""
        children = children_of(self.process.pid)
        self.process.kill()
        for child in children:
            _end(child)
        self.process.wait(SOON_S)
        self._close()

    def stop(self) -> int:
        """End it in good order."""
        os.close(self._write)
        self._write = -1
        code = self.process.wait(SOON_S)
        self._close()
        return code

    def _close(self) -> None:
        for descriptor in (self._read, self._write):
            if descriptor >= 0:
                os.close(descriptor)
        self._read = self._write = -1


class Said:
    """What an engine has answered."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.numbers = answer
        self.results = [
            Result(tuple(tokens), tuple(logprobs), cached) for tokens, logprobs, cached in answer["results"]
        ]

    @property
    def cached(self) -> list[int]:
        return [result.cached_tokens for result in self.results]


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that live, and those that they have started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children_of(child)]
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

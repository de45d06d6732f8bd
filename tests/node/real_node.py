"""A real `kvtide node`, and embedded engines in processes of their own that use it.

with RealNode(path) as node:            # a process; kill() and start() it
    engine = EngineProcess(node.path)   # one too; kill() it
    engine.ask("r", prompt, 4).tokens

`before` is a command that runs them, and that they do not outlive.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from kvtide.core.index import lives, look_ups
from kvtide.engine import Engine, EngineConfig, ModelConfig
from kvtide.node import index_link, link, memory
from kvtide.node.ask import status_of
from kvtide.node.errors import NodeError
from tests.node.support import SOON_S, SOURCE, wait_until

MODEL = ModelConfig(layers=2, hidden=32, heads=2, kv_heads=2, head_dim=16, mlp=32, vocab=64)
DEVICE_BLOCKS = 48
BLOCK_TOKENS = 8


def be_patient() -> Iterator[None]:
    """Wait for the node as long as a busy machine may need: what is late costs a hit, and tests count these."""
    deadlines = {
        "ATTACH_S": (index_link, lives),
        "HELLO_S": (link, memory),
        "LATE_S": (look_ups,),
    }
    with ExitStack() as stack:
        for name, modules in deadlines.items():
            for module in modules:
                stack.enter_context(patch.object(module, name, SOON_S))
        yield


def config_of(ranks: int = 1) -> EngineConfig:
    """An engine whose device pool holds little more than one conversation."""
    return EngineConfig(
        model=MODEL, device_blocks=DEVICE_BLOCKS, block_tokens=BLOCK_TOKENS, step_tokens=64, ranks=ranks, max_running=2
    )


class Answer(NamedTuple):
    """What an engine says to a prompt."""

    tokens: list[int]
    device_tokens: int
    loaded_tokens: int


class RealNode:
    """A process that is there when its socket is, and may be killed and started again."""

    def __init__(self, path: Path, *arguments: str, memory: str = "8MiB", before: Sequence[str] = ()) -> None:
        self.path = path
        self._arguments = ["--memory", memory, "--socket", str(path), *arguments]
        self._before = before
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "kvtide", "node", *self._arguments]
        self.process = subprocess.Popen(  # noqa: S603 (our own)
            [*self._before, *command], stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(SOURCE)}
        )
        wait_until(self.is_there)

    def is_there(self) -> bool:
        try:
            return bool(self.status())
        except NodeError:
            assert self.process.poll() is None, "the node has ended"
            return False

    def status(self) -> dict[str, Any]:
        return status_of(self.path, SOON_S)

    def namespace(self) -> dict[str, Any]:
        """The only namespace, as the node shows it."""
        (namespace,) = self.status()["namespaces"]
        found: dict[str, Any] = namespace
        return found

    def check_at_rest(self) -> None:
        """Check that nobody holds anything: every slot is free or cached.

        One more engine says that it can use all of them: the last one may have left before it knew.
        """
        wait_until(lambda: all(engine["state"] == "open" for engine in self.status()["engines"]), self.status)
        with Engine(config_of(), {"node": str(self.path)}) as engine:

            def is_at_rest() -> bool:
                serve(engine, [0], 1)
                found = self.namespace()
                held = found["leased"] + found["writing"] + found["quarantined"]
                return not held and bool(found["free"] + found["cached"] == found["slots"])

            wait_until(is_at_rest, self.status)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SOON_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SOON_S)

    def __enter__(self) -> RealNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class EngineProcess:
    """An embedded engine, which answers one prompt after the other, and steps only meanwhile."""

    def __init__(self, node: Path | None, ranks: int = 1, before: Sequence[str] = ()) -> None:
        command = [*before, sys.executable, "-m", "tests.node.real_node", str(node or ""), str(ranks)]
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{root}", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(  # noqa: S603 (our own)
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )
        assert self._read() == "ready"

    def begin(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([list(prompt), max_new_tokens]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Answer:
        said = self._read()
        assert isinstance(said, list), f"the engine says {said!r}"
        return Answer(*said)

    def ask(self, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        self.begin(prompt, max_new_tokens)
        return self.answer()

    def _read(self) -> object:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self._wait()

    def _wait(self) -> int:
        code = self.process.wait(SOON_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def serve(engine: Engine, prompt: Sequence[int], max_new_tokens: int) -> Answer:
    """Answer one prompt, and let what it computed be stored."""
    engine.submit("r", prompt, max_new_tokens)
    (done,) = engine.run()
    return Answer(list(done.tokens), done.device_tokens, done.loaded_tokens)


def _main(node: str, ranks: int) -> None:
    with contextmanager(be_patient)(), Engine(config_of(ranks), {"node": node} if node else None) as engine:
        _say("ready")
        for line in sys.stdin:
            _say(serve(engine, *json.loads(line)))


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))

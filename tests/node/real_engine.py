"""An engine at a real node: a scheduler and workers in this process, which write and read the node's memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvtide.core import FullAttention, Match
from kvtide.core.chain import Chain
from kvtide.core.index.index import Grant, Want
from kvtide.core.index.remote import RemoteIndex
from kvtide.core.requests import Request
from kvtide.node.ask import status_of
from kvtide.node.client import Client
from kvtide.node.described_groups import described
from kvtide.node.hello import Hello, Role
from kvtide.node.index_link import IndexLink
from tests.node.support import SOON_S, wait_until

TOKENS = 16
GROUPS = (FullAttention(TOKENS),)
PARTS = (1000, 500)


def keys(text: str, blocks: int) -> list[bytes]:
    return [hashlib.sha256(f"{text} {block}".encode()).digest() for block in range(blocks)]


def content(key: bytes, part: int, nbytes: int, weights: str) -> bytes:
    """What a block holds in a part."""
    seed = hashlib.sha256(key + bytes([part]) + weights.encode()).digest()
    return (seed * (nbytes // len(seed) + 1))[:nbytes]


class RealEngine:
    """Attached, with all of its memory ready."""

    def __init__(self, path: Path, name: str = "engine", weights: str = "1", **more: object) -> None:
        self.path, self.weights = path, weights
        self.lines: list[str] = []
        namespace = {"model": "tiny", "weights": weights, "parts": list(PARTS), "groups": described(GROUPS), **more}
        self.link = IndexLink(path, Hello(Role.SCHEDULER, engine=name, namespace=namespace), self.lines.append)
        self.index = RemoteIndex(self.link, GROUPS)
        self.requests = 0
        wait_until(lambda: self.index.receive() is not None and self.link.pool is not None)
        assert self.link.pool is not None
        epoch, owner = self.link.pool.epoch, self.link.pool.owner
        told: dict[str, Any] = {"engine": name, "epoch": epoch, "owner": owner}
        self.workers = [Client(path, Hello(Role.WORKER, rank=part, part=part, **told)) for part in range(len(PARTS))]
        for worker in self.workers:
            worker.wait(SOON_S)
        self.name = next(engine["namespace"] for engine in self.status()["engines"] if engine["owner"] == owner)
        wait_until(lambda: self.space()["ready_slots"] == self.link.slots)
        self.index.grow(self.link.slots)
        self.step()

    def status(self) -> dict[str, Any]:
        return status_of(self.path, SOON_S)

    def space(self) -> Mapping[str, Any]:
        return next(space for space in self.status()["namespaces"] if space["name"] == self.name)

    def tier(self, name: str = "disk") -> Mapping[str, Any]:
        return next(tier for tier in self.space()["tiers"] if tier["name"] == name)

    def step(self) -> None:
        self.index.plan()
        time.sleep(0.001)
        self.index.receive()

    def store(self, text: str, blocks: int) -> int:
        """Write blocks; return how many were lacking."""
        all_keys = keys(text, blocks)
        answers: list[list[Grant]] = []
        chain = Chain(0, all_keys, None, TOKENS, list(range(1, blocks + 1)))
        self.index.reserve([Want(chain, needs_prefix=False, touch=False)], blocks, answers.append)
        while not answers:
            self.step()
        ((grant,),) = answers
        for run in grant.runs:
            for key, slot in zip(run.keys, run.slots, strict=True):
                self._write(key, slot)
        assert self.index.settle(grant.runs, kept=True)
        self.step()
        return grant.blocks

    def look_up(self, text: str, blocks: int) -> tuple[Request, Match]:
        """Look a text up, step after step until there is an answer: it is told of no time, and nothing is late."""
        self.requests += 1
        request = Request(f"r{self.requests}", [keys(text, blocks)], [[]])
        end_s = time.monotonic() + SOON_S
        while True:
            match = self.index.look_up(request, 0, blocks * TOKENS + 1, lambda _: True)
            if not match.waits:
                return request, match
            assert time.monotonic() < end_s, "it waits for ever"
            self.step()

    def load(self, text: str, blocks: int) -> int:
        """Load what there is of a text; return how many blocks that is. All bytes are compared."""
        request, match = self.look_up(text, blocks)
        lease = self.index.lease(match)
        all_keys = keys(text, blocks)
        for piece in match.pieces:
            for key, slot in zip(all_keys[piece.first_block :], piece.slots, strict=False):
                self._compare(key, slot)
        self.index.use(match)
        self.index.release(lease)
        self.index.drop(request)
        self.step()
        return match.tokens // TOKENS

    def _write(self, key: bytes, slot: int) -> None:
        for part, worker in enumerate(self.workers):
            row = worker.arenas[0].memory[slot]
            row[:] = bytearray(content(key, part, len(row), self.weights))

    def _compare(self, key: bytes, slot: int) -> None:
        for part, worker in enumerate(self.workers):
            row = worker.arenas[0].memory[slot]
            assert row.tobytes() == content(key, part, len(row), self.weights), f"part {part} of slot {slot}"

    def close(self) -> None:
        self.link.close()
        for worker in self.workers:
            worker.close()
            for arena in worker.arenas:
                arena.close()


@contextmanager
def engine(path: Path, name: str = "engine", weights: str = "1", **more: object) -> Iterator[RealEngine]:
    """An engine that leaves in the end."""
    found = RealEngine(path, name, weights, **more)
    try:
        yield found
    finally:
        found.close()

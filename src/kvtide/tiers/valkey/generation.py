"""Which generation of a namespace's blocks counts.

To clear a namespace is to name another generation: one small write, however many blocks there are. All engines read
the name together with the blocks, so from that moment none of them serves an old block (F9).

A server that evicts may evict the name as well, and everything would be lost with it. So there are copies: as long as
one is left, whoever notices puts the others back. If none is left, or they do not agree, a new generation begins. It is
random and not counted up, because a count would begin again at blocks that were cleared once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvtide.tiers.backend import BackendDown
from kvtide.tiers.valkey.connection import Connection, good
from kvtide.tiers.valkey.names import Names
from kvtide.tiers.valkey.protocol import Command, Reply

_TRIES = 3


class Generation:
    """The name that one engine knows. `current` is None while it does not."""

    def __init__(self, names: Names) -> None:
        self._names = names.generation
        self.current: bytes | None = None
        self._is_thin = False
        """Some copies are missing."""

    @property
    def names(self) -> tuple[bytes, ...]:
        """Where the copies are: they are read along with whatever is asked."""
        return self._names

    @property
    def question(self) -> Command:
        """Return the command that reads all copies."""
        return (b"MGET", *self._names)

    def join(self, connection: Connection) -> bytes:
        """Return the generation that counts; if there is none, begin one. The first of several engines wins."""
        for _ in range(_TRIES):
            begun, copies = connection.ask([(b"MSETNX", *self._each(_new())), self.question])
            if (seen := _agreed(copies)) is not None:
                self.current = seen
                return seen
            good(begun)
            self.begin(connection)  # copies that do not agree, or were evicted at once
        raise BackendDown("it forgets at once what is written to it")

    def begin(self, connection: Connection) -> bytes:
        """Begin a new generation, and so forget all others."""
        name = _new()
        good(*connection.ask([(b"MSET", *self._each(name))]))
        self.current = name
        return name

    def still(self, generation: bytes, copies: Reply | Sequence[Reply]) -> bool:
        """Say whether a generation counts, by the copies as they were read."""
        seen = _agreed(good(copies))
        if seen == generation:
            self._is_thin = isinstance(copies, Sequence) and None in copies
            return True
        self.current = seen
        return False

    def mend(self, connection: Connection) -> None:
        """Put missing copies back. Those that someone else has written meanwhile are left as they are."""
        generation, is_thin, self._is_thin = self.current, self._is_thin, False
        if is_thin and generation is not None:
            connection.ask([(b"SET", name, generation, b"NX") for name in self._names])

    def _each(self, value: bytes) -> list[bytes]:
        return [word for name in self._names for word in (name, value)]


def _new() -> bytes:
    """Return a name that was never used."""
    return os.urandom(8).hex().encode()


def _agreed(copies: Reply | Sequence[Reply]) -> bytes | None:
    if not isinstance(copies, list):
        return None
    (seen, *others) = {copy for copy in copies if copy is not None} or {None}
    return seen if isinstance(seen, bytes) and not others else None

"""What the server asks of whoever keeps the index: the place where frames of schedulers go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from kvtide.node.arenas import NodeArena
from kvtide.node.frames import Frame
from kvtide.node.hello import Hello
from kvtide.node.owners import Owner


class Handler(Protocol):
    """Calls come from the server's thread, and must not block it."""

    def attach(self, owner: Owner, hello: Hello) -> Mapping[str, object]:
        """A scheduler wants to begin a life. Set its namespace, and return what it should be told beside its numbers.

        Raises:
            Refused: not this one.

        """

    def join(self, owner: Owner, hello: Hello) -> Sequence[NodeArena]:
        """A worker wants to map the memory of its part. Raises `Refused`, too."""

    def handle(self, owner: Owner, frame: Frame) -> Iterable[Frame]:
        """A scheduler has sent a frame of a kind from `FIRST_OF_INDEX` on. Return what goes back to it.

        Raises:
            BadFrame: it makes no sense. The connection is closed; the node lives.

        """

    def rest(self) -> bool:
        """All are answered: do some of what is to be done sooner or later. Returns whether there is more of it."""

    def ending(self, owner: Owner) -> None:
        """An owner sends nothing any more. What it holds is in quarantine."""

    def over(self, owner: Owner) -> None:
        """None of its copies can run any more. What it held is free."""

    def clear(self, name: str) -> int:
        """Forget all blocks of a namespace; return how many there were. Raises `Refused`."""

    def status(self) -> Mapping[str, object]:
        """Return what there is to say to operators, as JSON."""

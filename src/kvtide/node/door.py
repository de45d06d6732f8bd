"""Where connections come in, as long as the system can give them."""

from __future__ import annotations

import socket
from collections.abc import Callable

from kvtide.node.errors import Gone
from kvtide.node.listening import Listening
from kvtide.node.loop import READ, Loop


class Door:
    """Hands each connection to `enter`. Where the system has no descriptor left, those who come wait a tick."""

    def __init__(
        self, loop: Loop, listening: Listening, enter: Callable[[socket.socket], None], cannot: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._enter = enter
        self._cannot = cannot
        self._is_watched = False
        self._is_open = True
        self.tick()

    def tick(self) -> None:
        """Try again."""
        if self._is_open and not self._is_watched:
            self._loop.watch(self._listening.socket.fileno(), READ, self._accept)
            self._is_watched = True

    def close(self) -> None:
        """Listen no more. May be called again."""
        self._is_open = False
        self._unwatch()
        self._listening.close()

    def _accept(self, _: int) -> None:
        try:
            sock = self._listening.accept()
        except Gone as error:
            self._unwatch()
            self._cannot(str(error))
        else:
            if sock is not None:
                self._enter(sock)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._loop.forget(self._listening.socket.fileno())
            self._is_watched = False

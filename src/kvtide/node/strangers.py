"""Engines that might have expected to share with one that has come are told why they do not (F23)."""

from __future__ import annotations

from collections.abc import Iterable

from kvtide.node.frames import Frame, Kind
from kvtide.node.hello import Hello
from kvtide.node.lines import News
from kvtide.node.namespaces import Description, is_private, name_of, nearest, unlike


class Strangers:
    """Remembers who was spoken of: who is refused tries again, once a second."""

    def __init__(self) -> None:
        self._news = News()

    def notice(self, hello: Hello, used: Iterable[Description]) -> tuple[str, Frame] | None:
        """Return the namespace among those that are `used` whose engines are to be told of who says hello, and what.

        It is the one that is most alike. None if there is nobody, or nothing new. That an engine has other weights
        from now on than all others is its own affair.
        """
        known = None if is_private(hello.namespace) else nearest(hello.namespace, used)
        if known is None:
            return None
        why = unlike(known, [hello.namespace])
        line = f"engine {hello.engine} has come, and shares nothing with this one: {why}"
        return (name_of(known), Frame(Kind.NOTICE, line.encode())) if self._news.is_new(line) else None

"""Before a worker of vLLM gives the memory of the KV cache back, the copies that read or write it come to their end.

vLLM does not tell its connectors that it goes to sleep, and a copy into memory that is not mapped any more costs the
process its GPU. So the worker's own methods wait first.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kvtide.errors import StillCopying
from kvtide.vllm.log import logger

if TYPE_CHECKING:
    from kvtide.vllm.connector import KVTideConnector

COPIES_WAIT_S = 30.0
"""How long a worker that shall sleep waits for its copies: more than all of a large pool takes."""
GIVES_MEMORY_BACK = ("sleep", "discard")
"""Methods of a worker that unmap the KV cache. `discard` is since 0.31."""

_connectors: WeakSet[KVTideConnector] = WeakSet()


def wait_before_sleep(worker_class: str, connector: KVTideConnector) -> None:
    """Let workers of this class, by its full name, wait for the copies of `connector` before they sleep."""
    _connectors.add(connector)
    try:
        found = pkgutil.resolve_name(worker_class)
    except (ImportError, AttributeError, ValueError) as error:
        logger.warning(
            "kvtide: the worker %r is not found (%s): do not let it sleep while it serves", worker_class, error
        )
        return
    for name in GIVES_MEMORY_BACK:
        method = getattr(found, name, None)
        if method is not None and not hasattr(method, "waits_for_copies"):
            setattr(found, name, _waiting(method))


def _waiting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def waits(*args: Any, **kwargs: Any) -> Any:
        wait_for_copies()
        return method(*args, **kwargs)

    waits.__dict__["waits_for_copies"] = True  # a mark: it is not wrapped twice
    return waits


def wait_for_copies() -> None:
    """Return when no copy of this process reads or writes the KV cache; raise if that takes too long."""
    if not all(connector.settle(COPIES_WAIT_S) for connector in tuple(_connectors)):
        raise StillCopying(
            f"KV blocks are still being copied after {COPIES_WAIT_S:.0f} s, so their memory cannot be given back; "
            "this worker stays awake: ask again later, or wake the engine up"
        )

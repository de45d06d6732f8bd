"""What operators can ask of a running node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtide.node.client import Client
from kvtide.node.errors import BadFrame, Gone, NodeError, NoNode
from kvtide.node.frames import Kind
from kvtide.node.hello import Hello, Role

ANSWER_S = 5.0


def status_of(path: Path, timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Return what a node says of itself. Raises `NodeError`."""
    found = _ask(path, Kind.STATUS, b"", timeout_s)
    if "too_long_bytes" in found:
        raise NodeError(f"the node at {path} has more to say than fits: {found['too_long_bytes']} bytes")
    return found


def clear(path: Path, namespace: str, timeout_s: float = ANSWER_S) -> int:
    """Let a node forget all blocks of a namespace, by its name; return how many there were. Raises `NodeError`."""
    found = _ask(path, Kind.CLEAR, namespace.encode(), timeout_s)
    if "why" in found:
        raise NodeError(f"the node at {path} says: {found['why']}")
    return int(found["blocks"])


def _ask(path: Path, kind: Kind, body: bytes, timeout_s: float) -> dict[str, Any]:
    client = Client(path, Hello(Role.OPERATOR))
    try:
        client.wait(timeout_s)
        answer = client.ask(kind, body, timeout_s=timeout_s)
    except (BadFrame, Gone) as error:
        raise NodeError(f"what listens at {path} is no node, or has just ended: {error}") from error
    finally:
        client.close()
    if answer is None:
        raise NoNode(f"the node at {path} did not answer within {timeout_s:g} s")
    found: dict[str, Any] = json.loads(answer.body)
    return found

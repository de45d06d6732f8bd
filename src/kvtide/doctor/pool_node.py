"""The node that keeps host memory for all engines of this machine: whether it answers, and takes this user."""

from __future__ import annotations

from pathlib import Path

from kvtide.doctor.base import Finding, bad, ok, warning
from kvtide.node.ask import status_of
from kvtide.node.errors import NodeError, NoNode
from kvtide.units import how_many, size_text

SILENCE_S = 2.0


def check_pool_node(path: Path) -> Finding:
    """Ask it how it is, as an operator does: credentials and protocol are those of engines."""
    try:
        status = status_of(path, SILENCE_S)
    except NoNode as error:
        start = f"start it: kvtide node --memory SIZE --socket {path}"
        return warning(str(error), f"{start}; a server starts without it, and attaches when it comes")
    except NodeError as error:
        return bad(str(error), "run servers as the user of the node or as members of its --group, with the same kvtide")
    memory = f"{size_text(status['free_bytes'])} of {size_text(status['memory_bytes'])} free"
    return ok(f"{path} is a node (kvtide {status['kvtide']}): {how_many(len(status['engines']), 'engine')}, {memory}")

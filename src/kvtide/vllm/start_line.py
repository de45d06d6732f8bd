"""What the log says at start: which kvtide this is, and what was set up."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import kvtide
from kvtide.core import OffloadConfig
from kvtide.units import size_text
from kvtide.vllm.options import Options
from kvtide.vllm.packing import packing_text
from kvtide.vllm.replicas import Replicas

_GIT_TIMEOUT_S = 2.0
_COMMIT_CHARS = 9


def start_line(config: OffloadConfig, options: Options, replicas: Replicas) -> str:
    """Return the line: version, host memory, copies, tiers, and how they are used."""
    geometry = config.geometry
    parts = geometry.parts or geometry.ranks
    ranks = "" if parts == 1 else f" on each of {geometry.ranks} ranks"
    blocks = f"blocks of {size_text(geometry.block_bytes)}{ranks}{replicas}"
    if options.node is not None:
        memory, policy = f"host memory and tiers of the node at {options.node} ({blocks})", ""
    else:
        tiers = ", ".join(tier.shown for tier in options.tiers) or "none"
        memory = f"{size_text(config.host_bytes)} of host memory{options.where(config)} "
        memory += f"({config.slots} {blocks}), tiers below: {tiers}"
        policy = f"policy {config.policy}, "
    return (
        f"kvtide {version_text()}: {memory}; {packing_text(options)}mode {config.mode}, {policy}"
        f"admission {config.admission}, "
        f"{geometry.device_blocks} device blocks, at most {config.pin_budget_blocks} of them pinned by stores, "
        f"groups: {', '.join(map(str, geometry.groups))}"
    )


def version_text() -> str:
    """Return the version, and the commit where that can be told and the version does not name it."""
    commit = _installed_commit() or _cloned_commit(Path(__file__).parents[3])
    if commit is None or commit[:7] in kvtide.__version__:
        return kvtide.__version__
    return f"{kvtide.__version__} (commit {commit[:_COMMIT_CHARS]})"


def _installed_commit() -> str | None:
    """Return what pip has noted about an installation from git."""
    try:
        noted = distribution("kvtide").read_text("direct_url.json")
        return str(json.loads(noted)["vcs_info"]["commit_id"]) if noted else None
    except (PackageNotFoundError, ValueError, KeyError):
        return None


def _cloned_commit(root: Path) -> str | None:
    """Return the commit of the clone that this file is in, if it is one. A server never waits long for that."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    try:
        command = [git, "-C", str(root), "rev-parse", "HEAD"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None

"""What the configuration wants of this machine, read as a server reads it. Folders of tiers are looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtide.core import FullAttention, Geometry
from kvtide.doctor.asked import Asked
from kvtide.doctor.base import Finding, bad, ok
from kvtide.errors import ConfigError
from kvtide.options import parse_size
from kvtide.tiers import TierConfig
from kvtide.tiers.config import read_tiers
from kvtide.units import size_text
from kvtide.vllm.options import DEFAULT_HOST, DP_RANK, check_options

ANY_GEOMETRY = Geometry(groups=(FullAttention(16),), block_bytes=4096, device_blocks=2**40)
"""The model is not known here. What is too small for these blocks is too small for any, as "64" where GiB are meant."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration says, as far as it can be read."""

    given: bool = False
    """Whether there is one: otherwise it is what kvtide does by itself."""
    host_bytes: int = parse_size("host", DEFAULT_HOST)
    per_rank: bool = False
    """Whether each rank takes that much."""
    tiers: tuple[TierConfig, ...] = ()
    """Those that can be read."""
    problems: tuple[ConfigError, ...] = ()
    """Why a server would refuse it."""
    node: Path | None = None
    """The socket of the node that has the host memory, so that the server takes none."""

    @property
    def rdma(self) -> bool:
        """Whether a tier uses RDMA, which locks memory."""
        return any(getattr(tier, "protocol", "") == "rdma" for tier in self.tiers)


def read_wanted(asked: Asked) -> Wanted:
    """Read what is asked for."""
    problems = list(asked.problems)
    host, per_rank, node = _host_of(asked, problems)
    tiers = tuple(_tiers_of(asked))
    return Wanted(asked.given, host, per_rank, tiers, tuple(problems), node)


def check_config(wanted: Wanted) -> Finding:
    """Say whether a server would take the configuration."""
    if not wanted.given:
        return ok(f"none given (--config): {DEFAULT_HOST} of host memory and no tiers are assumed")
    tiers = ", ".join(f"{tier.type} at {tier.place}" for tier in wanted.tiers) or "none"
    if wanted.problems:
        wrong = "; ".join(map(_as_written, wanted.problems))
        expected = "; ".join(f"{problem.option}: {problem.expected}" for problem in wanted.problems)
        assumed = f"{size_text(wanted.host_bytes)} of host memory, tiers: {tiers}"
        return bad(f"a server would refuse {wrong}; what follows assumes {assumed}", f"expected are: {expected}")
    note = "" if wanted.node is None else node_note(wanted.node)
    return ok(f"a server would take it; tiers: {tiers}{note and f'; {note}'}")


def node_note(path: Path) -> str:
    """Say that a node is not there yet, or not for this user. Empty if something is there."""
    try:
        path.stat()
    except FileNotFoundError:
        return f"nothing is at {path} yet: a server serves without a node until it comes"
    except OSError as error:
        return f"this user cannot get at {path} ({error.strerror}): its server would serve without a node"
    return ""


def _as_written(problem: ConfigError) -> str:
    """Return what is refused, in few words."""
    if problem.value is None:
        return f"{problem.option}, which is left out"
    return f"{problem.option}={repr(problem.value) if isinstance(problem.value, str | int | float) else '…'}"


def _host_of(asked: Asked, problems: list[ConfigError]) -> tuple[int, bool, Path | None]:
    """Read everything as a server does; return the host memory, whether that is of each rank, and the node if any."""
    options, errors = check_options(asked.extra)
    problems += errors
    if options is None:
        return parse_size("host", DEFAULT_HOST), False, None
    if options.node is not None:
        return 0, False, options.node
    try:
        config = options.build_unchecked(ANY_GEOMETRY)
    except ConfigError as too_small:
        problems.append(too_small)
        return parse_size("host", DEFAULT_HOST), False, None
    return config.host_bytes, "host_per_rank" in options.core, None


def _tiers_of(asked: Asked) -> list[TierConfig]:
    """Read each tier by itself: what is wrong with one keeps nobody from looking at the others."""
    tiers = asked.extra.get("tiers", ())
    own = [
        {**tier, "path": tier["path"].replace(DP_RANK, "0")}
        if isinstance(tier, dict) and isinstance(tier.get("path"), str)
        else tier
        for tier in (tiers if isinstance(tiers, list) else ())
    ]
    return read_tiers(own)[0]

"""What the configuration wants of this machine, read as a server reads it. Folders of tiers are looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvtide.core import FullAttention, Geometry, OffloadConfig
from kvtide.doctor.asked import Asked
from kvtide.doctor.base import Finding, bad, ok
from kvtide.errors import ConfigError
from kvtide.options import parse_size, redacted
from kvtide.tiers import TierConfig
from kvtide.tiers.config import kind_of
from kvtide.vllm.options import DEFAULT_HOST, DP_RANK, read_options

_ANY_GEOMETRY = Geometry(groups=(FullAttention(16),), block_bytes=1, device_blocks=2**40)
"""The model is not known here, so sizes are compared with nothing."""
_SECRET = re.compile("pass|secret|token|key", re.IGNORECASE)


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

    @property
    def rdma(self) -> bool:
        """Whether a tier uses RDMA, which locks memory."""
        return any(getattr(tier, "protocol", "") == "rdma" for tier in self.tiers)


def read_wanted(asked: Asked) -> Wanted:
    """Read what is asked for."""
    problems = list(asked.problems)
    host, per_rank = _host_of(asked, problems)
    tiers = tuple(_tiers_of(asked, problems))
    unlike = {str(problem): problem for problem in problems}
    return Wanted(asked.given, host, per_rank, tiers, tuple(unlike.values()))


def check_config(wanted: Wanted) -> Finding:
    """Say whether a server would take the configuration."""
    if not wanted.given:
        return ok(f"none given (--config): {DEFAULT_HOST} of host memory and no tiers are taken for granted")
    if wanted.problems:
        wrong = "; ".join(f"{problem.option}={_value_text(problem)}" for problem in wanted.problems)
        expected = "; ".join(f"{problem.option}: {problem.expected}" for problem in wanted.problems)
        return bad(f"a server would refuse {wrong}", f"expected are: {expected}")
    tiers = ", ".join(f"{tier.type} at {tier.place}" for tier in wanted.tiers)
    return ok(f"a server would take it; tiers: {tiers or 'none'}")


def _value_text(problem: ConfigError) -> str:
    """Return a refused value, unless a password may be in it."""
    value = problem.value
    if _SECRET.search(problem.option) or not isinstance(value, str | int | float | None):
        return "…"
    return repr(redacted(value) if isinstance(value, str) and "@" in value else value)


def _host_of(asked: Asked, problems: list[ConfigError]) -> tuple[int, bool]:
    """Read everything as a server does; return the host memory, and whether that is of each rank."""
    try:
        options = read_options(asked.extra, events=False)
        config = OffloadConfig.build(_ANY_GEOMETRY, options.core, options.below)
    except ConfigError as problem:
        problems.append(problem)
        return parse_size("host", DEFAULT_HOST), False
    return config.host_bytes, "host_per_rank" in options.core


def _tiers_of(asked: Asked, problems: list[ConfigError]) -> Iterator[TierConfig]:
    """Read each tier by itself: what is wrong with one keeps nobody from looking at the others."""
    tiers = asked.extra.get("tiers")
    for index, tier in enumerate(tiers) if isinstance(tiers, list) else ():
        if not isinstance(tier, dict) or "type" not in tier:
            continue  # refused already
        own_path = {"path": tier["path"].replace(DP_RANK, "0")} if isinstance(tier.get("path"), str) else {}
        try:
            yield kind_of(f"tiers[{index}].type", tier["type"]).parse(index, {**tier, **own_path})
        except ConfigError as problem:
            problems.append(problem)

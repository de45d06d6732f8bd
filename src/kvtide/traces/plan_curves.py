"""What the curves of a plan are drawn from, on the page and in the picture."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from kvtide.traces.plan import EXACT, PlanResult
from kvtide.traces.prices import GIB
from kvtide.units import percent_text, seconds_text, size_text

_BETWEEN = 40
"""So many points are drawn between two sizes, where the curve is known everywhere."""
_SAME = 0.0005
"""Shares that look the same when printed."""
_UNITS = ((120.0, 6.0, "min", 1 / 60), (1.0, 0.0, "s", 1.0), (0.0, 0.0, "ms", 1000.0))
"""If the longest and the shortest time have at least so many seconds, a unit, and how many of it a second has."""
_FAR = 20
"""Times that differ by that much would all lie on the ground but one."""


def sizes_of(plan: PlanResult) -> list[int]:
    """Return the sizes that were planned, in bytes."""
    return [point.host_bytes for point in next(iter(plan.curves.values()))]


def main_policy(plan: PlanResult) -> str:
    """Return the policy that the recommendation counts on: the main curve."""
    return plan.recommendation.policy


def fine_curve(plan: PlanResult) -> list[tuple[float, float]]:
    """Return the main curve at more sizes (GiB, percent) where it is known everywhere, else nothing."""
    if main_policy(plan) not in EXACT or not plan.lru_curve:
        return []
    steps = [size for size, _ in plan.lru_curve]
    sizes = sizes_of(plan)
    asked = [low * (high / low) ** (part / _BETWEEN) for low, high in pairwise(sizes) for part in range(_BETWEEN)]
    shares = [0.0, *(share for _, share in plan.lru_curve)]
    return [(size / GIB, 100 * shares[bisect_right(steps, size)]) for size in [*asked, sizes[-1]]]


def time_unit(plan: PlanResult) -> tuple[str, float]:
    """Return the unit that times to first token are drawn in, and how many of it a second has."""
    longest_s, shortest_s = max(plan.ttft_without_s, *plan.ttft_s), min(plan.ttft_without_s, *plan.ttft_s)
    return next(
        (unit, times) for long_s, short_s, unit, times in _UNITS if longest_s >= long_s and shortest_s >= short_s
    )


def is_far_apart(plan: PlanResult) -> bool:
    """Whether times to first token differ so much that they are drawn on a logarithmic scale."""
    return max(plan.ttft_without_s, *plan.ttft_s) > _FAR * min(plan.ttft_without_s, *plan.ttft_s) > 0


def compared(plan: PlanResult, policy: str) -> str:
    """Say where a policy differs most from the main one."""
    if policy == main_policy(plan):
        return "in the recommendation"
    if is_same(plan, policy):
        return f"the same as {main_policy(plan)}"
    more, size = _most_different(plan, policy)
    return f"{100 * more:+.1f} points at {size_text(size)}"


def is_same(plan: PlanResult, policy: str) -> bool:
    """Whether a policy looks like the main one at every size."""
    return abs(_most_different(plan, policy)[0]) < _SAME


def _most_different(plan: PlanResult, policy: str) -> tuple[float, int]:
    """Return how much more than the main policy this one adds where they differ most, and the size in bytes."""
    pairs = zip(plan.curves[policy], plan.curves[main_policy(plan)], strict=True)
    return max(
        ((one.added_share - main.added_share, one.host_bytes) for one, main in pairs), key=lambda pair: abs(pair[0])
    )


def page_data(plan: PlanResult) -> dict[str, object]:
    """Return all that the page draws."""
    sizes, main = sizes_of(plan), main_policy(plan)
    chosen = plan.recommendation.host_bytes
    unit, times = time_unit(plan)
    fine = fine_curve(plan)
    return {
        "sizes": [size / GIB for size in sizes],
        "size_texts": [size_text(size) for size in sizes],
        "chosen": sizes.index(chosen) if chosen in sizes else None,
        "chosen_text": size_text(chosen) if chosen else "none",
        "main": list(plan.curves).index(main),
        "fine": fine,
        "policies": [
            {
                "name": policy,
                "shares": [100 * point.added_share for point in points],
                "errors": [100 * point.error for point in points],
                "texts": [percent_text(point.added_share) for point in points],
                "fine": bool(fine) and policy == main,
            }
            for policy, points in plan.curves.items()
        ],
        "ttft": {
            "unit": unit,
            "far_apart": is_far_apart(plan),
            "values": [times * ttft_s for ttft_s in plan.ttft_s],
            "texts": [seconds_text(ttft_s) for ttft_s in plan.ttft_s],
            "without": times * plan.ttft_without_s,
            "without_text": seconds_text(plan.ttft_without_s),
        },
    }

"""What to buy, and why, in words and numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kvtide.traces.certainty import Certainty
from kvtide.traces.prices import dollars_text
from kvtide.traces.steady_state import SteadyState
from kvtide.traces.worth import Economy, Worth
from kvtide.units import percent_text, seconds_text, size_text

_LATE_S = 60.0
"""A server where somebody waits longer than that for a first token does not keep up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay of the whole recording showed."""

    device_share: float
    """Of the prefill tokens: found on the device."""
    added_share: float
    """Loaded from host memory besides."""
    ttft_s: float
    """Mean time to first token."""
    ttft_s_max: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether requests come faster than they are served, at some time."""
        return self.ttft_s_max > _LATE_S

    def helps(self, before: Outcome) -> bool:
        """Whether this is better than without host memory: something is loaded, and first tokens come sooner."""
        return self.added_share > 0 and self.ttft_s < before.ttft_s


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The size to buy. Shares and times are those of a replay of the recording with that size."""

    host_bytes: int
    """0: buy none."""
    policy: str
    device_share: float
    added_share: float
    ttft_ms_before: float
    ttft_ms_after: float
    saved_dollars_per_hour: float
    """In steady state."""
    price_dollars_per_hour: float
    why: str
    certainty: Certainty

    def as_json(self) -> dict[str, object]:
        """Return it as plain data."""
        return {**asdict(self), "certainty": {**asdict(self.certainty), "text": self.certainty.text}}


def recommendation(
    chosen: Worth, why: str, *, policy: str, before: Outcome, after: Outcome, certain: Certainty
) -> Recommendation:
    """Put it together."""
    return Recommendation(
        host_bytes=chosen.host_bytes,
        policy=policy,
        device_share=after.device_share,
        added_share=after.added_share,
        ttft_ms_before=1000 * before.ttft_s,
        ttft_ms_after=1000 * after.ttft_s,
        saved_dollars_per_hour=chosen.saved,
        price_dollars_per_hour=chosen.price,
        why=why,
        certainty=certain,
    )


def why_late(before: Outcome, after: Outcome) -> str:
    """Say that the server does not keep up with the traffic, if it does not: then means tell little."""
    if after.is_late:
        even = "Even so" if after is not before else "As it is"
        return (
            f" {even} the server does not keep up at the busiest time, when somebody waits for a first token for "
            f"{seconds_text(after.ttft_s_max)}: it needs more GPUs, or larger ones."
        )
    if before.is_late:
        return (
            f" Without host memory the server does not keep up at the busiest time, when somebody waits for "
            f"{seconds_text(before.ttft_s_max)}; with it, for {seconds_text(after.ttft_s_max)} at most."
        )
    return ""


def why_none(steady: SteadyState, before: Outcome, most: Worth, economy: Economy) -> str:
    """Say why no memory is worth its price. `most` is the size that comes nearest."""
    if economy.loading_is_slower:
        return (
            f"Buy none: loading a token takes {seconds_text(economy.load_s)} over this link and computing it "
            f"{seconds_text(economy.compute_s)}, so host memory would make turns slower."
        )
    if not steady.uses_per_s:
        return "Buy none: all requests have the same time, so what memory would be worth in an hour cannot be told."
    if not steady.reuses:
        return "Buy none: no prompt begins with a block that an earlier one had, so there is nothing to load."
    have = f"The device serves {percent_text(before.device_share)} of prefill tokens."
    if most.added_share <= 0:
        return f"Buy none. {have} Nothing else comes back that host memory could add."
    added = f"{size_text(most.host_bytes)} of host memory would add {percent_text(most.added_share)}"
    return (
        f"Buy none. {have} {added} in the long run, which saves {dollars_text(most.saved)} of GPU time per hour and "
        f"costs {dollars_text(most.price)}."
    )


def why_some(chosen: Worth, following: Worth | None, before: Outcome, after: Outcome, keeps_s: float) -> str:
    """Say what the chosen size brings, and what the next one would."""
    on_device, without = percent_text(after.device_share), percent_text(before.device_share)
    on_device += " that the device serves" + (f" ({without} without it)" if without != on_device else "")
    sentence = (
        f"With {size_text(chosen.host_bytes)} of host memory {percent_text(after.added_share)} of prefill tokens are "
        f"loaded instead of computed, besides {on_device}, and a first "
        f"token takes {seconds_text(after.ttft_s)} on average instead of {seconds_text(before.ttft_s)}. In the long "
        f"run it keeps KV for about {seconds_text(keeps_s)} and saves {dollars_text(chosen.saved)} of GPU time per "
        f"hour for {dollars_text(chosen.price)}"
    )
    if following is None:
        return f"{sentence}; no larger size was tried."
    saved, price = following.saved - chosen.saved, following.price - chosen.price
    more = size_text(following.host_bytes - chosen.host_bytes)
    return f"{sentence}; another {more} would save {dollars_text(saved)} more for {dollars_text(price)} more."

"""Advice from what a server has counted: each with the numbers it rests on, and none without evidence.

What counters cannot show is not guessed. Tokens that were not cached may be new or may have been evicted; only a tier
below that still has them, or a host pool that loses blocks while it finds others, tells. How much memory is enough
is a question for a trace: `kvtide plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvtide.top.advice import Advice
from kvtide.top.figures import Figures
from kvtide.top.repairs import to_repair, to_verify
from kvtide.top.state import State
from kvtide.units import percent_text, seconds_text, size_text

REQUESTS_MIN = 20
TOKENS_MIN = 2_000
"""With fewer requests, or prompt tokens, chance says more than traffic."""
FULL = 0.95
"""From here on a pool or a tier counts as full."""
NOTABLE = 0.05
"""The least share of prompt tokens, or of blocks, that advice is given for."""
TIER_KEYS_MIN = 500
"""With fewer lookups nothing is said about a tier."""
UNREAD = 20
"""Blocks stored for each one loaded, from which on most of what is stored is of no use as it is."""


Rule = Callable[[Figures, State], Iterator[Advice]]


def advise(shown: Figures, now: State) -> list[Advice]:
    """Return advice for a server: at least one, which may be to do nothing or to look longer."""
    repairs = list(to_repair(now))
    if repairs:
        return repairs  # what else is counted meanwhile is a consequence
    suspects = list(to_verify(shown))
    if shown.requests < REQUESTS_MIN or shown.tokens.all < TOKENS_MIN:
        return [*suspects, _unknown(shown)]
    found = [advice for rule in RULES for advice in rule(shown, now)]
    return [*suspects, *(found or [_nothing(shown, now)])]


def _memory(shown: Figures, now: State) -> Iterator[Advice]:
    """The host pool is full and loses blocks that are asked for again."""
    fill, evicted = now.pool.fill or 0.0, shown.blocks["evicted"]
    if fill < FULL or not evicted:
        return
    host, tiers = shown.tokens.share("host") or 0.0, shown.tokens.share("tiers") or 0.0
    computed = shown.tokens.share("computed") or 0.0
    numbers = {"pool_fill": fill, "evicted_blocks": evicted, "host_share": host, "tiers_share": tiers}
    size = f" of {size_text(now.pool.bytes)}" if now.pool.bytes else ""
    full = f"The host pool{size} is full and evicted {evicted:,.0f} blocks{_age(shown, now)}."
    if tiers >= NOTABLE:
        yield Advice(
            "memory",
            "Give it more host memory (`host`).",
            f"{full} {percent_text(tiers)} of prompt tokens had left it and came back from a tier.",
            numbers,
        )
    elif not now.tiers and host >= NOTABLE and computed >= NOTABLE:
        because = (
            f"{full} {percent_text(host)} of prompt tokens were found there and {percent_text(computed)} computed, of "
            "which some were surely evicted before. Counters do not tell how many: `kvtide plan` with a trace does."
        )
        yield Advice("memory", "More host memory (`host`) probably helps.", because, {**numbers, "computed": computed})
        yield Advice("tier", "Or put a disk or a shared store below it (`tiers`).", because, {**numbers})


def _age(shown: Figures, now: State) -> str:
    """Say how long a block stays, where that is known."""
    rate = shown.rate(shown.blocks["evicted"])
    return f": one stays for {seconds_text(now.pool.slots / rate)}" if rate else ""


def _tiers(shown: Figures, now: State) -> Iterator[Advice]:
    """A tier is too small, too slow, or of no use."""
    late = shown.not_loaded.get("tier_late", 0.0) / shown.tokens.all
    if late >= NOTABLE:
        yield Advice(
            "tier",
            "Use a faster tier, or none.",
            f"{percent_text(late)} of prompt tokens were computed because a tier was late.",
            {"tier_late_share": late},
        )
    for name, traffic in shown.tiers.items():
        asked = traffic.found_keys + traffic.missing_keys
        if asked < TIER_KEYS_MIN or name not in now.tiers:
            continue
        found, fill = traffic.found_keys / asked, now.tiers[name].fill
        numbers = {"looked_up_keys": asked, "found_share": found}
        if found < NOTABLE / 5:
            yield Advice(
                "tier",
                f"Take tier {name} away unless it is meant for a restart or for other servers.",
                f"It was asked for {asked:,.0f} keys and had {percent_text(found)} of them.",
                numbers,
            )
        elif fill is not None and fill >= FULL and 1 - found >= NOTABLE:
            yield Advice(
                "tier",
                f"Give tier {name} more room.",
                f"It is full, and had {percent_text(found)} of the {asked:,.0f} keys it was asked for.",
                {**numbers, "tier_fill": fill},
            )


_LOST = (
    (
        "evicted_from_device",
        "Store with `mode=eager`, or raise `pin_budget`.",
        "had left the device before their turn came",
    ),
    ("queue_full", "Raise `pin_budget`.", "were given up because too many waited"),
    (
        "unpacked_full",
        "Write `packing=auto`, which looks at the first blocks before it packs, or `off`.",
        "do not pack, and there was no place for them",
    ),
)
"""Reasons why blocks are not stored: what to do, and what became of them."""


def _policy(shown: Figures, now: State) -> Iterator[Advice]:
    """What is stored is not what is asked for."""
    stored, loaded = shown.blocks["stored"], shown.blocks["loaded"]
    lost = {why: count / (stored + count) for why, count in shown.not_stored.items()}
    fill, evicted = now.pool.fill or 0.0, shown.blocks["evicted"]
    for why, what, became in _LOST:
        if (share := lost.get(why, 0.0)) >= NOTABLE:
            numbers = f"{percent_text(share)} of the blocks to store {became}."
            yield Advice("policy", what, numbers, {f"{why}_share": share})
    if (share := lost.get("not_admitted", 0.0)) >= NOTABLE and fill < FULL:
        yield Advice(
            "policy",
            "Store all blocks (`admission=all`).",
            f"{percent_text(1 - fill)} of the host pool is empty, and {percent_text(share)} of the blocks were not "
            "stored because only one request had asked for them so far.",
            {"not_admitted_share": share, "pool_fill": fill},
        )
    if fill >= FULL and evicted and stored > UNREAD * max(loaded, 1.0):
        yield Advice(
            "policy",
            "Store from the second use on (`admission=second-use`), or give it more host memory (`host`).",
            f"{stored:,.0f} blocks were stored and {loaded:,.0f} loaded, while {evicted:,.0f} were evicted: most of "
            "what is stored leaves before it is asked for again, or never is. Counters do not tell which: `kvtide "
            "plan` with a trace does.",
            {"stored_blocks": stored, "loaded_blocks": loaded, "evicted_blocks": evicted},
        )


RULES: tuple[Rule, ...] = (_memory, _tiers, _policy)


def _unknown(shown: Figures) -> Advice:
    return Advice(
        "unknown",
        "Look again when there is more traffic, or for longer (`--seconds`, `--since-start`).",
        f"{shown.requests:,.0f} requests with {shown.tokens.all:,.0f} prompt tokens are too few to say anything: "
        f"it takes {REQUESTS_MIN} and {TOKENS_MIN:,}.",
        {"requests": shown.requests, "prompt_tokens": shown.tokens.all},
    )


def _nothing(shown: Figures, now: State) -> Advice:
    fill, computed = now.pool.fill or 0.0, shown.tokens.share("computed") or 0.0
    if fill < FULL:
        why = f"The host pool is {percent_text(fill)} full: more memory would hold nothing more."
    elif not shown.blocks["evicted"]:
        why = "The host pool is full and evicted nothing."
    else:
        why = "The host pool evicts, and nothing shows that what it evicts is asked for again."
    return Advice(
        "nothing",
        "Leave it as it is.",
        f"{why} {percent_text(computed)} of prompt tokens were computed.",
        {"pool_fill": fill, "computed_share": computed, "evicted_blocks": shown.blocks["evicted"]},
    )

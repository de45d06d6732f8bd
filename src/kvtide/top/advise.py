"""Advice from what a server has counted: each with the numbers it rests on, and none without evidence.

What counters cannot show is not guessed. Tokens that were not cached may be new or may have been evicted; only a tier
below that still has them, or a host pool that loses blocks while it finds others, tells. How much memory is enough
is a question for a trace: `kvtide plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvtide.top.advice import Advice
from kvtide.top.evidence import FULL, NOTABLE, REQUESTS_MIN, TIER_KEYS_MIN, TOKENS_MIN, UNREAD, seen_text
from kvtide.top.figures import Figures
from kvtide.top.node_advice import ask_the_node, lost_at_node, memory_of_node, node_is_well
from kvtide.top.repairs import to_repair, to_verify
from kvtide.top.state import State
from kvtide.units import how_many, percent_text, seconds_text, size_text

Rule = Callable[[Figures, State], Iterator[Advice]]


def advise(shown: Figures, now: State) -> list[Advice]:
    """Return advice for a server or a node: at least one, which may be to do nothing or to look longer."""
    repairs = list(to_repair(shown, now))
    if repairs:
        return repairs  # what else is counted meanwhile is a consequence
    suspects = list(to_verify(shown))
    if shown.requests < REQUESTS_MIN or shown.tokens.all < TOKENS_MIN:
        return [*suspects, _unknown(shown, now)]
    rules = RULES if now.node is None else RULES_OF_NODE
    found = [advice for rule in rules for advice in rule(shown, now)]
    return [*suspects, *(found or [_nothing(shown, now)])]


def _memory(shown: Figures, now: State) -> Iterator[Advice]:
    """The host pool is full and loses blocks that are asked for again."""
    fill, evicted = now.pool.fill, shown.blocks["evicted"]
    if fill is None or fill < FULL or not evicted:
        return
    host, tiers = shown.tokens.share("host") or 0.0, shown.tokens.share("tiers") or 0.0
    computed = shown.tokens.share("computed") or 0.0
    numbers = {"pool_fill": fill, "evicted_blocks": evicted, "host_share": host, "tiers_share": tiers}
    size = f" of {size_text(now.pool.bytes)}" if now.pool.bytes else ""
    full = f"The host pool{size} is full and evicted {how_many(evicted, 'block')}{_age(shown, now)}."
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
    for why, what, became in _LOST:
        if (share := lost.get(why, 0.0)) >= NOTABLE:
            numbers = f"{percent_text(share)} of the blocks to store {became}."
            yield Advice("policy", what, numbers, {f"{why}_share": share})
    fill, evicted = now.pool.fill, shown.blocks["evicted"]
    if fill is None:
        return
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


RULES: tuple[Rule, ...] = (lost_at_node, _memory, _tiers, _policy)
RULES_OF_NODE: tuple[Rule, ...] = (lost_at_node, memory_of_node)


def _unknown(shown: Figures, now: State) -> Advice:
    longer = "" if shown.seconds is None else ", or for longer (`--seconds`, `--since-start`)"
    return Advice(
        "unknown",
        f"Look again when there is more traffic{longer}.",
        f"{seen_text(shown, now)} are too few to say anything: it takes {REQUESTS_MIN} and {TOKENS_MIN:,}.",
        {"requests": shown.requests, "prompt_tokens": shown.tokens.all},
    )


def _nothing(shown: Figures, now: State) -> Advice:
    if now.node is not None:
        return node_is_well(shown, now)
    if now.link is not None:
        return ask_the_node(shown)
    fill, computed = now.pool.fill, shown.tokens.share("computed") or 0.0
    if fill is None:
        why = "The server has not said how full the host pool is."
    elif fill < FULL:
        why = f"The host pool is {percent_text(fill)} full: more memory would hold nothing more."
    elif not shown.blocks["evicted"]:
        why = "The host pool is full and evicted nothing."
    else:
        why = "The host pool evicts, and nothing shows that what it evicts is asked for again."
    return Advice(
        "nothing",
        "Leave it as it is.",
        f"{why} {percent_text(computed)} of prompt tokens were computed.",
        {
            **({} if fill is None else {"pool_fill": fill}),
            "computed_share": computed,
            "evicted_blocks": shown.blocks["evicted"],
        },
    )

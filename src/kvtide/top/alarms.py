"""What somebody should look at, in words: a line each."""

from __future__ import annotations

from kvtide.top.figures import Figures
from kvtide.top.history import Server
from kvtide.top.state import Link, Node, State
from kvtide.units import how_many


def alarms(server: Server) -> list[str]:
    """Return what is wrong with a server now."""
    if server.state == "waiting":
        return []
    found = [server.why] if server.why else []
    if server.state == "up" and server.now is not None:
        found += _of_state(server.now)
        found += _of_figures(server.window or server.since_start)
    return found


def _of_state(now: State) -> list[str]:
    found = ["a rank cannot copy any more: offloading has stopped, and the log says why"] if now.stopped_engines else []
    found += [
        f"tier {name} is switched off on rank {', '.join(tier.off_ranks)} after failures"
        for name, tier in now.tiers.items()
        if tier.off_ranks
    ]
    if now.link is not None and now.link.away:
        found.append(_of_link(now.link))
    if now.node is not None:
        found += _of_node(now.node)
    if unanswered := now.waits["transfers_unanswered"]:
        found.append(f"{how_many(unanswered, 'transfer')} overdue: until all ranks answer, nothing is stored or loaded")
    return found


def _of_link(link: Link) -> str:
    whose = f" for {link.away} of {link.engines} engines" if link.away < link.engines else ""
    return f"the node is away{whose}: nothing is stored or loaded there; start it, or see in the log why"


def _of_node(node: Node) -> list[str]:
    found = ["there is no room for another connection: raise LimitNOFILE of the node"] if node.is_crowded else []
    why = "it is still being opened, or the node's log says why"
    found += [f"tier {name} is not in use: {why}" for name, used in node.tiers.items() if not used]
    if node.quarantined:
        slots = how_many(node.quarantined, "slot")
        found.append(f"{slots} in quarantine: processes of ended engines may still use them")
    return found


def _of_figures(shown: Figures | None) -> list[str]:
    if shown is None:
        return []
    found = [f"{name.replace('_', ' ')}: {count:,.0f}" for name, count in shown.trouble.items() if count]
    found += [
        f"tier {name}: {how_many(tier.corrupt_records, 'record')} did not verify"
        for name, tier in shown.tiers.items()
        if tier.corrupt_records
    ]
    return found

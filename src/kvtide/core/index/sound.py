"""Whether what an engine asks of a shared index can be. If not, `ProtocolError`, before anything has changed."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.index.calls import LookUp, Offer
from kvtide.errors import ProtocolError


def check_look_up(call: LookUp, block_tokens: Sequence[int]) -> None:
    """Groups are ours, and no more is left out than the device has, or looking would cost more than the message did."""
    tokens = call.device_tokens
    _check(len(call.keys) == len(block_tokens) and 0 <= tokens < call.num_tokens)
    _check(all(first <= tokens // size for first, size in zip(call.firsts, block_tokens, strict=False)))


def check_search(call: LookUp) -> None:
    """No key of a group is there twice: one that comes up from below would be in two slots."""
    firsts = call.firsts or [0] * len(call.keys)
    keys = [keys[first:] for keys, first in zip(call.keys, firsts, strict=True)]
    _check(all(len(set(each)) == len(each) for each in keys))


def check_offers(offers: Sequence[Offer], block_tokens: Sequence[int]) -> None:
    """Groups are ours, and blocks are whole."""
    _check(all(_is_sound(offer, block_tokens) for offer in offers))


def check_chains(offers: Sequence[Offer]) -> None:
    """No key follows itself."""
    _check(all(len({offer.parent, *offer.keys}) == 1 + len(offer.keys) for offer in offers))


def _is_sound(offer: Offer, block_tokens: Sequence[int]) -> bool:
    return (
        0 <= offer.group < len(block_tokens)
        and offer.end_tokens > 0
        and offer.end_tokens % block_tokens[offer.group] == 0
        and all(0 <= position < len(offer.keys) for position in offer.gone)
    )


def _check(sound: bool) -> None:
    if not sound:
        raise ProtocolError("this engine asks for what cannot be: it has another idea of the model's groups")

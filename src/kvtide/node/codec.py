"""Calls of engines and replies of the index as frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from struct import Struct
from typing import TypeVar

from kvtide.core.chain import Chain
from kvtide.core.index import calls
from kvtide.core.index.calls import Call, Found, Offer, Reply, Reserved, Run, Taken, Unkept
from kvtide.core.match import Piece
from kvtide.core.reasons import NotLoaded, NotStored
from kvtide.node.errors import BadFrame
from kvtide.node.frames import FIRST_OF_INDEX, Frame
from kvtide.node.packed import Keys, Reader, pack_keys, pack_slots

Why = TypeVar("Why", bound=Enum)


class Kind(IntEnum):
    """Frames of the index."""

    LOOK_UP = FIRST_OF_INDEX
    RELEASE = FIRST_OF_INDEX + 1
    RESERVE = FIRST_OF_INDEX + 2
    SETTLE = FIRST_OF_INDEX + 3
    CUT = FIRST_OF_INDEX + 4
    READY = FIRST_OF_INDEX + 5
    AGAIN = FIRST_OF_INDEX + 6
    DROP = FIRST_OF_INDEX + 7
    FOUND = FIRST_OF_INDEX + 16
    RESERVED = FIRST_OF_INDEX + 17
    UNKEPT = FIRST_OF_INDEX + 18


_COUNT = Struct("<I")
_TOKENS_MAX = (1 << 32) - 1
_GROUPS_MAX = 256
_STEP_S_MAX = 3600.0
_LOOK_UP = Struct("<QQQIdI")
_RELEASE = Struct("<Q?")
_RESERVE = Struct("<QI")
_OFFER = Struct("<BQ???I")
_SETTLE = Struct("<?")
_RUN_ID = Struct("<Q")
_CUT = Struct("<QI")
_FOUND = Struct("<QQQ?II")
_PIECE = Struct("<BII")
_RUN = Struct("<QII")
_SPAN = Struct("<II")
_WHY = Struct("<BQ")
_TAKEN = Struct("<IIIII")
_ID = Struct("<Q")
_CHAIN = Struct("<BQ?")

# ---------------------------------------------------------------------- calls


def call_frame(call: Call) -> Frame:
    """Return a call as it is sent."""
    match call:
        case calls.LookUp():
            computed = min(call.computed_tokens, _TOKENS_MAX), min(call.computed_s, _STEP_S_MAX)
            head = _LOOK_UP.pack(call.id, call.device_tokens, call.num_tokens, *computed, len(call.keys))
            keys = [
                pack_keys(keys[first:], first)
                for keys, first in zip(call.keys, call.firsts or [0] * len(call.keys), strict=True)
            ]
            frame = Frame(Kind.LOOK_UP, head + b"".join(keys))
        case calls.Again() | calls.Drop():
            frame = Frame(Kind.AGAIN if isinstance(call, calls.Again) else Kind.DROP, _ID.pack(call.id))
        case calls.Release():
            frame = Frame(Kind.RELEASE, _RELEASE.pack(call.lease, call.used))
        case calls.Reserve():
            head = _RESERVE.pack(call.id, call.room_blocks) + _COUNT.pack(len(call.offers))
            frame = Frame(Kind.RESERVE, head + b"".join(map(_pack_offer, call.offers)))
        case calls.Settle():
            runs = b"".join(map(_RUN_ID.pack, call.runs))
            frame = Frame(Kind.SETTLE, _SETTLE.pack(call.kept) + _COUNT.pack(len(call.runs)) + runs)
        case calls.Cut():
            frame = Frame(Kind.CUT, _CUT.pack(call.run, call.keep_blocks))
        case calls.Ready():
            frame = Frame(Kind.READY, _COUNT.pack(call.slots))
    return frame


def read_call(frame: Frame) -> Call:
    """Return what an engine says. Raises `BadFrame`."""
    read = _CALLS.get(frame.kind)
    if read is None:
        raise BadFrame(f"a frame of a kind that is not known: {frame.kind}")
    return _whole(frame, read)


def _pack_offer(offer: Offer) -> bytes:
    has_parent = offer.parent is not None
    gone = len(offer.gone)
    head = _OFFER.pack(offer.group, offer.end_tokens, has_parent, offer.needs_prefix, offer.touch, gone)
    parent = pack_keys([offer.parent]) if offer.parent is not None else b""
    return head + parent + pack_slots(offer.gone) + pack_keys(offer.keys)


def _read_look_up(reader: Reader) -> Call:
    id_, device_tokens, num_tokens, computed_tokens, computed_s, groups = reader.numbers(_LOOK_UP)
    if not 0 <= computed_s <= _STEP_S_MAX:
        raise BadFrame(f"a step that took {computed_s} s")
    keys = [reader.last_keys() for _ in range(_few(groups, _GROUPS_MAX))]
    firsts = [each.first for each in keys]
    return calls.LookUp(id_, keys, device_tokens, num_tokens, firsts, computed_tokens, computed_s)


def _read_again(reader: Reader) -> Call:
    return calls.Again(*reader.numbers(_ID))


def _read_drop(reader: Reader) -> Call:
    return calls.Drop(*reader.numbers(_ID))


def _read_release(reader: Reader) -> Call:
    return calls.Release(*reader.numbers(_RELEASE))


def _read_reserve(reader: Reader) -> Call:
    id_, room_blocks = reader.numbers(_RESERVE)
    offers = _few(reader.count(), calls.OFFERS_MAX)
    return calls.Reserve(id_, [_read_offer(reader) for _ in range(offers)], room_blocks)


def _read_offer(reader: Reader) -> Offer:
    group, end_tokens, has_parent, needs_prefix, touch, gone = reader.numbers(_OFFER)
    parent = _only(reader.keys()) if has_parent else None
    positions = reader.slots(gone)
    return Offer(group, reader.keys(), parent, end_tokens, positions, needs_prefix, touch)


def _read_settle(reader: Reader) -> Call:
    (kept,) = reader.numbers(_SETTLE)
    return calls.Settle([reader.numbers(_RUN_ID)[0] for _ in range(reader.count())], kept)


def _read_cut(reader: Reader) -> Call:
    return calls.Cut(*reader.numbers(_CUT))


def _read_ready(reader: Reader) -> Call:
    return calls.Ready(*reader.numbers(_COUNT))


_CALLS: Mapping[int, Callable[[Reader], Call]] = {
    Kind.LOOK_UP: _read_look_up,
    Kind.RELEASE: _read_release,
    Kind.RESERVE: _read_reserve,
    Kind.SETTLE: _read_settle,
    Kind.CUT: _read_cut,
    Kind.READY: _read_ready,
    Kind.AGAIN: _read_again,
    Kind.DROP: _read_drop,
}

# ---------------------------------------------------------------------- replies


def reply_frame(reply: Reply) -> Frame:
    """Return a reply as it is sent."""
    match reply:
        case Found():
            missed = _pack_reasons(_NOT_LOADED, reply.missed)
            counts = len(missed), len(reply.pieces)
            parts = [_FOUND.pack(reply.id, reply.tokens, reply.lease or 0, reply.waits, *counts), *missed]
            for group, first, slots in reply.pieces:
                parts += _PIECE.pack(group, first, len(slots)), pack_slots(slots)
            return Frame(Kind.FOUND, b"".join(parts))
        case Reserved():
            head = _ID.pack(reply.id) + _COUNT.pack(len(reply.taken))
            return Frame(Kind.RESERVED, head + b"".join(map(_pack_taken, reply.taken)))
        case Unkept():
            chain = reply.chain
            head = _CHAIN.pack(chain.group, chain.end_tokens, chain.parent is not None)
            parent = pack_keys([chain.parent]) if chain.parent is not None else b""
            return Frame(Kind.UNKEPT, head + parent + pack_keys(chain.keys))


def read_reply(frame: Frame) -> Reply:
    """Return what the index says. Raises `BadFrame`."""
    read = _REPLIES.get(frame.kind)
    if read is None:
        raise BadFrame(f"a frame of a kind that is not known: {frame.kind}")
    return _whole(frame, read)


def _pack_taken(taken: Taken) -> bytes:
    runs = [_RUN.pack(run.id, run.first, len(run.slots)) + pack_slots(run.slots) for run in taken.runs]
    left = [_SPAN.pack(*span) for span in taken.left]
    refused = _pack_reasons(_NOT_STORED, taken.refused)
    head = _TAKEN.pack(len(runs), len(left), len(refused), len(taken.gone), taken.reached)
    return b"".join([head, *runs, *left, *refused, pack_slots(taken.gone)])


def _read_found(reader: Reader) -> Reply:
    id_, tokens, lease, waits, reasons, groups = reader.numbers(_FOUND)
    missed = _read_reasons(_NOT_LOADED, reasons, reader)
    pieces = []
    for _ in range(groups):
        group, first, slots = reader.numbers(_PIECE)
        pieces.append(Piece(group, first, reader.slots(slots)))
    return Found(id_, tokens, tuple(pieces), missed, lease or None, waits)


def _read_reserved(reader: Reader) -> Reply:
    (id_,) = reader.numbers(_ID)
    return Reserved(id_, [_read_taken(reader) for _ in range(reader.count())])


def _read_taken(reader: Reader) -> Taken:
    num_runs, num_left, reasons, num_gone, reached = reader.numbers(_TAKEN)
    runs = []
    for _ in range(num_runs):
        id_, first, slots = reader.numbers(_RUN)
        runs.append(Run(id_, first, reader.slots(slots)))
    left = [reader.numbers(_SPAN) for _ in range(num_left)]
    refused = _read_reasons(_NOT_STORED, reasons, reader)
    return Taken(runs, [(first, last) for first, last in left], refused, reader.slots(num_gone), reached)


def _read_unkept(reader: Reader) -> Reply:
    group, end_tokens, has_parent = reader.numbers(_CHAIN)
    parent = _only(reader.keys()) if has_parent else None
    return Unkept(Chain(group, list(reader.keys()), parent, end_tokens))


_REPLIES: Mapping[int, Callable[[Reader], Reply]] = {
    Kind.FOUND: _read_found,
    Kind.RESERVED: _read_reserved,
    Kind.UNKEPT: _read_unkept,
}

# ---------------------------------------------------------------------- both

Said = TypeVar("Said", Call, Reply)


def _whole(frame: Frame, read: Callable[[Reader], Said]) -> Said:
    reader = Reader(frame.body)
    said = read(reader)
    reader.end()
    return said


def _few(count: int, most: int) -> int:
    """Return how many groups or chains a frame is about, if it may be as many."""
    if count > most:
        raise BadFrame(f"a frame about {count} groups or chains, and {most} are the most")
    return count


def _only(keys: Keys) -> bytes:
    if len(keys) != 1:
        raise BadFrame(f"{len(keys)} keys instead of one")
    return keys[0]


# Going through an enum takes longer than all else that is said about reasons.
_NOT_LOADED, _NOT_STORED = tuple(NotLoaded), tuple(NotStored)


def _pack_reasons(order: Sequence[Why], counts: Mapping[Why, int]) -> list[bytes]:
    return [_WHY.pack(order.index(why), count) for why, count in counts.items() if count]


def _read_reasons(order: Sequence[Why], reasons: int, reader: Reader) -> dict[Why, int]:
    counts = {}
    for _ in range(reasons):
        position, count = reader.numbers(_WHY)
        if position >= len(order):
            raise BadFrame("a reason that is not known")
        counts[order[position]] = count
    return counts

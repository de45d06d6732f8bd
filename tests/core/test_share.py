"""Shares of ranks that hold the same bytes: together everything, each block once."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from kvtide.core.messages import Copy
from kvtide.core.share import ALL, Share

COUNTS = (1, 2, 3, 4, 7, 8)


def shares(count: int) -> list[Share]:
    return [Share(index, count) for index in range(count)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("pairs", [0, 1, 2, 3, 5, 8, 13, 255, 256])
@pytest.mark.parametrize("id_", [1, 2, 9])
def test_f27_every_block_of_a_store_is_written_by_one_rank(count: int, pairs: int, id_: int) -> None:
    whole = Copy(id_, tuple(range(100, 100 + pairs)), tuple(range(0, 3 * pairs, 3)), filled=False)
    parts = [share.of_store(whole) for share in shares(count)]
    written = Counter(pair for part in parts for pair in zip(part.blocks, part.slots, strict=True))
    assert written == Counter(zip(whole.blocks, whole.slots, strict=True))
    assert {(part.id, part.filled) for part in parts} == {(id_, False)}


@pytest.mark.parametrize("count", COUNTS)
def test_no_rank_has_more_than_one_block_above_its_share(count: int) -> None:
    whole = Copy(1, tuple(range(29)), tuple(range(29)))
    lengths = [len(share.of_store(whole).slots) for share in shares(count)]
    assert max(lengths) - min(lengths) <= 1


def test_what_a_rank_stores_lies_side_by_side() -> None:
    whole = Copy(1, tuple(range(20, 30)), tuple(range(10)))
    for share in shares(3):
        slots = share.of_store(whole).slots
        assert slots == tuple(range(slots[0], slots[-1] + 1))


def test_stores_of_one_block_are_left_to_one_rank_after_the_other() -> None:
    writers = [
        [share.index for share in shares(4) if share.of_store(Copy(id_, (1,), (1,))).slots] for id_ in range(1, 9)
    ]
    assert all(len(one) == 1 for one in writers)
    assert Counter(one for (one,) in writers) == dict.fromkeys(range(4), 2)


@pytest.mark.parametrize("count", COUNTS)
def test_f27_every_block_below_the_host_is_kept_by_one_rank(count: int) -> None:
    names = [(0, hashlib.sha256(bytes((number,))).digest()) for number in range(200)]
    kept = Counter(position for share in shares(count) for position in share.of_names(names))
    assert kept == Counter(range(200))
    assert min(len(share.of_names(names)) for share in shares(count)) > 200 // count // 2


def test_who_keeps_a_block_does_not_depend_on_what_it_is_asked_with() -> None:
    names = [(0, bytes((number, 7))) for number in range(20)]
    alone = [share.index for name in names for share in shares(4) if share.of_names([name])]
    together = {position: share.index for share in shares(4) for position in share.of_names(names)}
    assert alone == [together[position] for position in range(20)]


def test_who_shares_with_nobody_has_all() -> None:
    whole = Copy(3, (1, 2), (4, 5))
    assert ALL.of_store(whole) is whole
    assert ALL.of_names([(0, b"a"), (1, b"b")]) == [0, 1]


@pytest.mark.parametrize(("index", "count"), [(1, 1), (-1, 2), (2, 2)])
def test_a_share_that_there_is_not_is_a_mistake_of_ours(index: int, count: int) -> None:
    with pytest.raises(AssertionError):
        Share(index, count)

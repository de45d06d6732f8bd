"""What is remembered of a node's keys: bounded, and the latest are never forgotten."""

from __future__ import annotations

from kvtide.core.index.known import KnownKeys


def numbered(first: int, last: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, last)]


def test_the_latest_half_is_remembered_and_not_more_than_all() -> None:
    known = KnownKeys(groups=1, keys_max=8)
    for number in range(100):
        known.add(0, numbered(number, number + 1))
        first_of_latest = max(0, number - 3)
        assert all(known.has(0, key) for key in numbered(first_of_latest, number + 1))
        assert sum(known.has(0, key) for key in numbered(0, 101)) <= 8


def test_the_groups_share_what_is_remembered() -> None:
    known = KnownKeys(groups=2, keys_max=8)
    known.add(0, numbered(0, 3))
    known.add(1, numbered(0, 3))
    known.add(1, numbered(3, 6))
    assert not any(known.has(0, key) for key in numbered(0, 3))
    assert all(known.has(1, key) for key in numbered(0, 6))


def test_a_key_belongs_to_its_group_and_is_forgotten_wherever_it_is() -> None:
    known = KnownKeys(groups=2, keys_max=6)
    known.add(0, numbered(0, 3))
    known.add(0, numbered(3, 6))
    assert not known.has(1, b"0")
    known.remove(0, [b"0", b"3", b"never seen"])
    assert [key for key in numbered(0, 6) if known.has(0, key)] == [b"1", b"2", b"4", b"5"]
    known.clear()
    assert not any(known.has(0, key) for key in numbered(0, 6))


def test_a_memory_for_nothing_remembers_nothing() -> None:
    known = KnownKeys(groups=1, keys_max=0)
    known.add(0, numbered(0, 3))
    assert not known.has(0, b"0")

"""I15: namespaces of one real node never see each other, whatever is stored, looked up or cleared in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvtide.node.ask import clear
from tests.node.real_engine import RealEngine, engine
from tests.node.test_node import node

BLOCKS = 8


@pytest.fixture(params=["the first one", "the second one"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RealEngine, RealEngine]]:
    """Engines with other weights at one node: the one that stores first, which is either of them, and the other."""
    path = tmp_path / "node.sock"
    with ExitStack() as stack:
        stack.enter_context(node(path, "--share", "50%"))
        engines = [stack.enter_context(engine(path, f"weights {each}", weights=each)) for each in ("1", "2")]
        writer, other = engines if request.param == "the first one" else reversed(engines)
        assert writer.name != other.name
        yield writer, other


def found_tokens(reader: RealEngine, text: str) -> int:
    request, match = reader.look_up(text, BLOCKS)
    reader.index.drop(request)
    return match.tokens


def test_i15_what_one_namespace_has_is_found_there_and_in_no_other(two: tuple[RealEngine, RealEngine]) -> None:
    writer, other = two
    assert writer.store("a", BLOCKS) == BLOCKS
    assert found_tokens(other, "a") == 0
    assert writer.load("a", BLOCKS) == BLOCKS
    assert [each.space()["cached"] for each in two] == [BLOCKS, 0]
    assert [each.space()["found_tokens"] > 0 for each in two] == [True, False]


def test_i15_the_same_key_is_another_block_in_another_namespace(two: tuple[RealEngine, RealEngine]) -> None:
    two[1].store("before", 3)  # so that they have it in different slots
    for each in two:
        assert each.store("a", BLOCKS) == BLOCKS, "nobody else has it, or writes it"
    for each in two:
        assert each.load("a", BLOCKS) == BLOCKS, "with the bytes of these weights"


def test_i15_a_clear_of_one_namespace_leaves_the_other_as_it_is(two: tuple[RealEngine, RealEngine]) -> None:
    cleared, other = two
    for each in two:
        each.store("a", BLOCKS)
    assert clear(cleared.path, cleared.name) == BLOCKS
    assert found_tokens(cleared, "a") == 0
    assert other.load("a", BLOCKS) == BLOCKS

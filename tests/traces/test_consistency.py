"""Hashes that are not those of prefixes are found."""

from __future__ import annotations

import pytest
from hypothesis import given

from kvtide.traces import TraceError
from kvtide.traces.consistency import consistent
from tests.traces.support import prompts, request


@given(prompts())
def test_prompts_that_share_beginnings_pass(made: list[tuple[int, ...]]) -> None:
    requests = [request(0, prompt) for prompt in made]
    assert [one.hashes[:-1] for one in consistent(requests)] == made


@pytest.mark.parametrize("second", [(2, 1), (3, 2), (1, 3, 2)])
def test_a_hash_behind_two_different_ones_is_an_error(second: tuple[int, ...]) -> None:
    with pytest.raises(TraceError, match="request 2: hash"):
        list(consistent([request(0, (1, 2)), request(1, second)]))

"""Engines that serve at the same time in the chat benchmark: users go from one to the next, also when one is killed.

The engines here say numbers that depend on all that was said before. Their processes, pipes and ends are real.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from chat_users import Answer, Engine, Round, Users
from chat_workload import Turn
from vllm_common import Child, FailedError
from vllm_together import TOGETHER, Served, Together, answer_others

CONVERSATIONS, TURNS = 4, 3
AT_ONCE = 2


def conversations(number: int) -> list[list[Turn]]:
    """Return those of a round. Nobody thinks."""
    return [[Turn([number, one, turn], 2, 0.0) for turn in range(TURNS)] for one in range(CONVERSATIONS)]


class Numbers:
    """An engine that says which one it is by the time between its tokens. `most`: after so many it answers no more."""

    def __init__(self, name: float, most: int = 1000) -> None:
        self.name = name
        self.left = most

    async def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        self.left -= 1
        if self.left < 0:
            await asyncio.Event().wait()
        return Answer([hash((*prompt, at)) % 1000 for at in range(max_tokens)], 1.0, [self.name])


def served_by(engines: list[Engine], number: int = 1) -> Round:
    return asyncio.run(Users(engines, AT_ONCE, number).run(conversations(number)))


def test_turns_of_a_conversation_go_from_one_engine_to_the_next() -> None:
    found = served_by([Numbers(0), Numbers(1)])
    assert Counter(found.between_first_ms) == {0: CONVERSATIONS}
    assert Counter(found.between_ms) == {0: CONVERSATIONS, 1: CONVERSATIONS}
    assert found.answers == served_by([Numbers(7)]).answers
    assert len(found.answers) == CONVERSATIONS * TURNS


class TakenAway(Numbers):
    """It is killed when it is asked, and was taken out before."""

    def __init__(self, engines: list[Engine]) -> None:
        super().__init__(9)
        self.engines = engines

    async def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        if self in self.engines:
            self.engines.remove(self)
        raise FailedError("it ended")


def test_what_a_killed_engine_leaves_behind_is_asked_again() -> None:
    engines: list[Engine] = [Numbers(0)]
    engines.append(TakenAway(engines))
    found = served_by(engines)
    assert found.asked_again == 1
    assert found.answers == served_by([Numbers(0)]).answers


class Failing(Numbers):
    async def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        raise FailedError("no such block")


def test_an_engine_that_fails_by_itself_is_not_passed_over() -> None:
    with pytest.raises(FailedError, match="no such block"):
        served_by([Numbers(0), Failing(1)])


# ---------------------------------------------------------------------- in processes


def serve(folder: Path, mode: str, orders: Any) -> None:
    """See `vllm_chat.serve`. In its first life the engine `dies` keeps what it is asked after two answers."""
    is_second = (folder / mode).exists()
    (folder / mode).touch()
    engine: Engine = {"lives": Numbers(0), "dies": Numbers(1, 1000 if is_second else 2)}.get(mode, Failing(2))
    start_s = 2.0 if is_second and mode == "dies" else 1.0
    orders.send("no memory is left" if mode == "does not start" else [start_s, mode])
    while (order := orders.recv()) is not None:
        if order == TOGETHER:
            asyncio.run(answer_others(engine, orders))
            break
        orders.send([Round(order)])
    orders.send([{"counted": mode}])


def read_nothing(orders: Any) -> None:
    orders.send(["there"])
    time.sleep(600)


def test_an_engine_that_is_killed_before_it_has_read_all_that_it_was_asked_has_ended() -> None:
    child = Child(multiprocessing.get_context("spawn"), read_nothing)
    assert child.answer() == ["there"]
    child.begin("a question")
    child.kill()
    with pytest.raises(FailedError, match="it ended"):
        child.answer()


class Group:
    def __init__(self, folder: Path, *modes: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.children: list[Child] = []

        def start(mode: str) -> Child:
            self.children.append(Child(context, partial(serve, folder), mode))
            return self.children[-1]

        self.together = Together(modes, start, AT_ONCE)
        self.told: list[Served] = []

    def run(self, rounds: int, *, kill: bool) -> Any:
        return self.together.run(
            [conversations(number) for number in range(rounds + 1)], kill=kill, tell=self.told.append
        )

    def are_gone(self) -> bool:
        return not any(child.is_alive() for child in self.children)


def test_engines_serve_all_rounds_together(tmp_path: Path) -> None:
    group = Group(tmp_path, "lives", "lives")
    [served] = group.run(2, kill=False)
    assert (served.what, served.start) == ("", (1.0, "lives"))
    for number, found in enumerate(served.rounds, 1):
        assert found.answers == served_by([Numbers(0)], number).answers
    assert served.counters == {"0: lives": {"counted": "lives"}, "1: lives": {"counted": "lives"}}
    assert group.are_gone()


def test_one_is_killed_in_the_middle_while_the_other_serves_and_comes_back(tmp_path: Path) -> None:
    group = Group(tmp_path, "lives", "dies")
    killed, again = group.run(1, kill=True)
    assert (killed.what, again.what) == (", one killed", ", all again")
    assert [served.what for served in group.told] == [killed.what, again.what, again.what], "as soon as they are had"
    assert group.told[-1] == again
    expected = served_by([Numbers(0)]).answers
    for [found] in (killed.rounds, again.rounds):
        assert found.answers == expected
    [found] = again.rounds
    assert Counter(found.between_ms) == {0: CONVERSATIONS, 1: CONVERSATIONS}, "both serve"
    assert (again.start, again.counters["1: dies"]) == ((2.0, "dies"), {"counted": "dies"})
    assert group.are_gone()


def test_a_group_fails_with_what_its_engine_said_and_nobody_is_left(tmp_path: Path) -> None:
    group = Group(tmp_path, "lives", "fails")
    with pytest.raises(FailedError, match="no such block"):
        group.run(1, kill=False)
    assert group.are_gone()


def test_a_group_of_which_one_does_not_start_fails_and_nobody_is_left(tmp_path: Path) -> None:
    group = Group(tmp_path, "lives", "does not start")
    with pytest.raises(FailedError, match="no memory is left"):
        group.run(1, kill=False)
    assert group.are_gone()

"""Engines that serve at the same time, for `vllm_chat.py --together`: users go from one to the next, one may be killed.

Each engine is in processes of its own. The users are here, and ask through pipes; times are taken beside the engines.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from chat_users import Answer, Engine, Round, Users
from chat_workload import Turn
from vllm_common import Child, FailedError, say

TOGETHER = "together"
"""The order to an engine's process to answer what it is asked from now on, until None comes."""


async def answer_others(engine: Engine, orders: Any) -> None:
    """Answer what comes through a pipe, all at a time."""

    async def answer(number: int, *question: Any) -> None:
        try:
            said: Any = [number, await engine.ask(*question)]
        except Exception:
            said = traceback.format_exc()
        orders.send(said)

    answers = []
    while (question := await asyncio.to_thread(orders.recv)) is not None:
        answers.append(asyncio.create_task(answer(*question)))
    await asyncio.gather(*answers)


class Remote:
    """An engine whose process answers others."""

    def __init__(self, mode: str, child: Child) -> None:
        self.mode = mode
        self.child = child
        self._asked = 0
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        child.begin(TOGETHER)
        self._end = asyncio.create_task(self._listen())

    async def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        """See `chat_users.Engine`."""
        self._asked += 1
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[self._asked] = answer
        self.child.begin((self._asked, prompt, max_tokens))
        return await answer

    async def end(self) -> dict[str, Any]:
        """Return what it has counted. It ends."""
        self.child.begin(None)
        counters = await self._end
        self.child.end()
        return counters

    async def _listen(self) -> dict[str, Any]:
        """Hand out answers until it says what it has counted."""
        try:
            while len(said := await asyncio.to_thread(self.child.answer)) > 1:
                number, answer = said
                self._answers.pop(number).set_result(answer)
        except FailedError as error:
            for waiting in self._answers.values():
                waiting.set_exception(error)
            return {"failed": str(error)}
        counters: dict[str, Any] = said[0]
        return counters


class Served(NamedTuple):
    """Some rounds of engines together: a row."""

    what: str
    """Different from serving together all the time."""
    start: tuple[float, Any]
    """Of the engine that started last."""
    rounds: list[Round]
    counters: dict[str, Any]


class Together:
    """The engines of a group."""

    def __init__(self, modes: Sequence[str], start: Callable[[str], Child], at_once: int) -> None:
        self._modes, self._start, self._at_once = modes, start, at_once
        self._children: list[Child] = []
        self._engines: list[Remote] = []

    def run(
        self, rounds: Sequence[list[list[Turn]]], *, kill: bool, tell: Callable[[Served], None] = lambda _: None
    ) -> list[Served]:
        """Let them serve all rounds; the one before the first is for warming up, and had by each engine alone.

        `kill`: the last round loses an engine in its middle. When that is back, the first round is served once more.
        `tell` hears of each row when it was served, and again of the last one, when all have counted. Raises
        `FailedError`.
        """
        try:
            self._children = [self._start(mode) for mode in self._modes]
            start_s, machine = max((child.answer() for child in self._children), key=itemgetter(0))
            for child in self._children:
                child.alone(self._children).order(0)
            for child in self._children:
                child.go_on()
            return asyncio.run(self._serve((start_s, machine), rounds, kill, tell))
        finally:
            self._kill_all()

    async def _serve(
        self, start: tuple[float, Any], rounds: Sequence[list[list[Turn]]], kill: bool, tell: Callable[[Served], None]
    ) -> list[Served]:
        served: list[Served] = []

        def add(what: str, start: tuple[float, Any], had: list[Round]) -> None:
            served.append(Served(what, start, had, {}))
            tell(served[-1])

        try:
            self._engines = [Remote(mode, child) for mode, child in zip(self._modes, self._children, strict=True)]
            last = len(rounds) - 1
            whole = range(1, last if kill else last + 1)
            if whole:
                add("", start, [await self._users(number).run(rounds[number]) for number in whole])
            if kill:
                users = self._users(last)
                killed, again = await asyncio.gather(users.run(rounds[last]), self._kill_in_the_middle(users, rounds))
                add(", one killed", start, [killed])
                add(", all again", again, [await self._users(1).run(rounds[1])])
            counters = {f"{number}: {each.mode}": await each.end() for number, each in enumerate(self._engines)}
            served[-1] = served[-1]._replace(counters=counters)
            tell(served[-1])
            return served
        finally:
            self._kill_all()  # threads may wait for what these say

    def _users(self, number: int) -> Users:
        return Users(self._engines, self._at_once, number)

    async def _kill_in_the_middle(self, users: Users, rounds: Sequence[list[list[Turn]]]) -> tuple[float, Any]:
        """Kill the last engine when half of a round's questions are answered, and start it again beside the others."""
        questions = sum(map(len, rounds[users.round.number]))
        while len(users.round.answers) < questions // 2:
            await asyncio.sleep(0.001)
        engine = self._engines.pop()
        await asyncio.to_thread(engine.child.kill)
        say(f"{engine.mode} was killed after {len(users.round.answers)} of {questions} answers")
        again = self._start(engine.mode)
        self._children.append(again)
        start_s, machine = await asyncio.to_thread(again.answer)
        await asyncio.to_thread(again.order, 0)
        say(f"{engine.mode} is back, {len(users.round.answers)} answers are there")
        self._engines.append(Remote(engine.mode, again))
        return start_s, machine

    def _kill_all(self) -> None:
        for child in self._children:
            child.kill()

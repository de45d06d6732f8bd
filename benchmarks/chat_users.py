"""The users of `vllm_chat.py`: each asks at their own pace, and what they waited for is taken down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chat_workload import Turn
from vllm_common import FailedError


@dataclass
class Answer:
    """What an engine said, and when."""

    tokens: list[int] = field(default_factory=list)
    first_ms: float = 0.0
    """From the question to the first token."""
    between_ms: list[float] = field(default_factory=list)
    """From each token to the next one."""


class Engine(Protocol):
    """Something that answers, many at a time."""

    async def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        """Return the answer. Raises `FailedError` if there will be none."""


class OwnEngine:
    """An engine of this process."""

    def __init__(self, engine: Any) -> None:
        """`engine`: vLLM's."""
        self._engine = engine
        self._requests = 0

    async def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        """See `Engine`."""
        from vllm import SamplingParams  # noqa: PLC0415 (takes seconds)
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._requests += 1
        answer = Answer()
        before_s = time.perf_counter()
        async for output in self._engine.generate({"prompt_token_ids": list(prompt)}, params, str(self._requests)):
            now_s = time.perf_counter()
            new = list(output.outputs[0].token_ids)
            if not new:
                continue
            waits_ms = 1e3 * (now_s - before_s)
            if answer.tokens:
                answer.between_ms += [waits_ms / len(new)] * len(new)
            else:
                answer.first_ms = waits_ms
            answer.tokens += new
            before_s = now_s
        return answer


@dataclass
class Round:
    """What happened in one round of one mode."""

    number: int
    first_ms: list[float] = field(default_factory=list)
    follow_up_ms: list[float] = field(default_factory=list)
    between_ms: list[float] = field(default_factory=list)
    """In answers of later turns."""
    between_first_ms: list[float] = field(default_factory=list)
    done_s: float = 0.0
    answers: dict[str, list[int]] = field(default_factory=dict)
    """By conversation and turn."""
    asked_again: int = 0
    """Questions that were left behind by an engine that was killed."""


class Users:
    """All users of one round."""

    def __init__(self, engines: Sequence[Engine], at_once: int, number: int) -> None:
        """`engines` take turns: turn k of each conversation goes to engine k, and behind the last one comes the first.

        Whoever kills one takes it out before.
        """
        self._engines = engines
        self._room = asyncio.Semaphore(at_once)
        self.round = Round(number)

    async def run(self, everything: list[list[Turn]]) -> Round:
        """Let all conversations take place."""
        begin_s = time.perf_counter()
        await asyncio.gather(*(self._converse(number, turns) for number, turns in enumerate(everything)))
        self.round.done_s = time.perf_counter() - begin_s
        return self.round

    async def _converse(self, conversation: int, turns: list[Turn]) -> None:
        history: list[int] = []
        for number, turn in enumerate(turns):
            await asyncio.sleep(turn.think_s)
            history += turn.tokens
            async with self._room:
                answer = await self._ask(number, history, turn.answer_tokens)
            history += answer.tokens
            self._take_down(f"{conversation}.{number}", answer, is_first=number == 0)

    async def _ask(self, number: int, prompt: list[int], max_tokens: int) -> Answer:
        begin_s = time.perf_counter()
        while True:
            engine = self._engines[number % len(self._engines)]
            lost_ms = 1e3 * (time.perf_counter() - begin_s)
            try:
                answer = await engine.ask(prompt, max_tokens)
            except FailedError:
                if engine in self._engines:
                    raise
                self.round.asked_again += 1
            else:
                answer.first_ms += lost_ms
                return answer

    def _take_down(self, name: str, answer: Answer, *, is_first: bool) -> None:
        self.round.answers[name] = answer.tokens
        (self.round.first_ms if is_first else self.round.follow_up_ms).append(answer.first_ms)
        between_ms = self.round.between_first_ms if is_first else self.round.between_ms
        between_ms += answer.between_ms

"""A request inside the engine, and what is said about it when it is over."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from kvtide.core.groups import Key

FinishReason = Literal["length", "aborted"]


class State(enum.Enum):
    """Where a request stands."""

    WAITING = enum.auto()
    """Holds no blocks."""
    LOADING = enum.auto()
    """Holds blocks, some of which are being loaded; must not run."""
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclass(frozen=True, slots=True)
class Completion:
    """A request that is over."""

    request_id: str
    tokens: tuple[int, ...]
    """The generated ones."""
    ttft_s: float | None
    """Seconds from submit to the first token; None if there is none."""
    prompt_tokens: int
    device_tokens: int
    """Tokens of the prompt that were found on the device."""
    loaded_tokens: int
    """Tokens of the prompt that were loaded from the host."""
    finish_reason: FinishReason


@dataclass(slots=True, eq=False)
class Request:
    """A request that is not over. `tables` and `keys` are live: kvtide reads them, so they are changed in place."""

    id: str
    tokens: list[int]
    """The prompt and what was generated so far."""
    prompt_tokens: int
    max_new_tokens: int
    submitted_s: float
    tables: list[list[int]]
    """Per group, the blocks of the request."""
    keys: list[Key] = field(default_factory=list)
    """Keys of the full blocks of `tokens`. The groups have one block size, so they have one list of keys."""
    state: State = State.WAITING
    admission: int = 0
    """Requests that were admitted later give way first."""
    computed: int = 0
    """Tokens whose KV is in the blocks."""
    registered: int = 0
    """Full blocks whose content the pool knows."""
    prefill_end: int = 0
    """Tokens that were known when the request was admitted: up to there it is prefill."""
    resume_at: int = 0
    """Tokens that will count as computed when the load is done."""
    load_began_s: float = 0.0
    """When the request was admitted with a load."""
    device_tokens: int = 0
    loaded_tokens: int = 0
    first_token_s: float | None = None

    @property
    def remaining(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    def completion(self, reason: FinishReason) -> Completion:
        """Return what is said about the request when it is over."""
        return Completion(
            request_id=self.id,
            tokens=tuple(self.tokens[self.prompt_tokens :]),
            ttft_s=None if self.first_token_s is None else self.first_token_s - self.submitted_s,
            prompt_tokens=self.prompt_tokens,
            device_tokens=self.device_tokens,
            loaded_tokens=self.loaded_tokens,
            finish_reason=reason,
        )

"""What a shared index was asked, and what it could give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from kvtide.core.index.calls import Found, Taken
from kvtide.core.reasons import NotLoaded, NotStored


@dataclass(slots=True)
class Counted:
    """Since the index was made, for all engines together."""

    lookups: Annotated[int, "Look-ups of engines."] = 0
    asked_tokens: Annotated[int, "Tokens that engines looked up, beyond what their devices had."] = 0
    found_tokens: Annotated[int, "Tokens that were found, and leased."] = 0
    stored_blocks: Annotated[int, "Blocks stored in host memory."] = 0
    clears: Annotated[int, "Times that an operator has cleared it."] = 0
    not_loaded: Annotated[Counter[NotLoaded], "Tokens that were looked up and not found, by reason."] = field(
        default_factory=Counter
    )
    not_stored: Annotated[Counter[NotStored], "Blocks that engines offered and that were not taken, by reason."] = (
        field(default_factory=Counter)
    )

    def looked_up(self, asked_tokens: int, found: Found) -> None:
        """Count a look-up that is over."""
        self.lookups += 1
        self.asked_tokens += asked_tokens
        self.found_tokens += found.tokens
        for why, tokens in found.missed.items():
            self.not_loaded[why] += tokens

    def reserved(self, taken: Iterable[Taken]) -> None:
        """Count what was not taken of offers."""
        for each in taken:
            for why, blocks in each.refused.items():
                self.not_stored[why] += blocks

    def plain(self) -> dict[str, int | dict[str, int]]:
        """Return all of it, with every reason, as JSON has it."""
        return {
            "lookups": self.lookups,
            "asked_tokens": self.asked_tokens,
            "found_tokens": self.found_tokens,
            "stored_blocks": self.stored_blocks,
            "clears": self.clears,
            "not_loaded": {why.value: self.not_loaded[why] for why in NotLoaded},
            "not_stored": {why.value: self.not_stored[why] for why in NotStored},
        }

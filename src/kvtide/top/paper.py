"""What the terminal's picture is drawn on, and in which colours."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.top.figures import LOAD, STORE

COLOURS = {"device": "blue", "host": "green", "tiers": "yellow", "computed": "dim", STORE: "cyan", LOAD: "magenta"}
NAME_WIDTH, NUMBER_WIDTH, GAP = 9, 12, 2
NARROW = 60
"""Below so many columns there is room for one number beside a curve."""


@dataclass(frozen=True, slots=True)
class Paper:
    """What is drawn on."""

    width: int
    height: int = 24
    ascii_only: bool = False
    live: bool = True
    """Whether there is more than one reading: curves, and numbers of the last minute."""

    @property
    def narrow(self) -> bool:
        """Whether only the most important fits."""
        return self.width < NARROW

    @property
    def numbers(self) -> int:
        """How many numbers stand in a line."""
        return 2 if self.live and not self.narrow else 1

    @property
    def curve_width(self) -> int:
        """The columns that are left for a curve."""
        return max(1, self.width - NAME_WIDTH - self.numbers * NUMBER_WIDTH - GAP)

"""How the memory of a node is divided: a stated share for some models, and the rest for all others.

Memory that a model was promised waits for it. Of the rest, the first model that comes takes as much as one may take;
what it leaves, and what those leave that no engine uses any more, is for the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvtide.errors import ConfigError

_SHARE = re.compile(r"(?:(?P<model>.+)=)?(?P<percent>[0-9]{1,9}(?:\.[0-9]{1,9})?)%", re.ASCII | re.DOTALL)
_ALL = 100.0


@dataclass(frozen=True, slots=True)
class Share:
    """What somebody has asked for."""

    model: str
    """Its name, or the last part of it. Empty: every model that has no share of its own."""
    percent: float


def read_shares(option: str, values: object) -> tuple[Share, ...]:
    """Read `MODEL=40%`, and `25%` for each of the others. Raises `ConfigError`."""
    texts = [values] if isinstance(values, str) else values
    if not isinstance(texts, Sequence):
        raise ConfigError(option, values, 'a list of texts such as "MODEL=40%"')
    shares: dict[str, Share] = {}
    for text in texts:
        share = _share(option, text)
        if share.model in shares:
            raise ConfigError(option, text, f"one share for {share.model or 'all others'}, and there is another one")
        shares[share.model] = share
    percent = sum(share.percent for share in shares.values() if share.model)
    if percent > _ALL:
        raise ConfigError(option, ", ".join(texts), f"shares of together at most 100%, and these are {percent:g}%")
    return tuple(shares.values())


def _share(option: str, text: object) -> Share:
    found = _SHARE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(option, text, "a model and its share, such as MODEL=40%, or 25% for each of the others")
    if not 0 < float(found["percent"]) <= _ALL:
        raise ConfigError(option, text, "a share above 0 and at most 100%")
    return Share((found["model"] or "").strip(), float(found["percent"]))


@dataclass(slots=True, eq=False)
class Budget:
    """Memory for one model, or for all that have no share of their own."""

    model: str
    """Empty: for the others."""
    label: str
    """For people."""
    nbytes: int
    each_bytes: int
    """What one namespace may take of it."""
    taken_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """What nobody has."""
        return self.nbytes - self.taken_bytes


class Budgets:
    """All memory of a node."""

    def __init__(self, memory_bytes: int, shares: Iterable[Share] = ()) -> None:
        self._of: dict[str, Budget] = {}
        each_bytes = memory_bytes
        for share in shares:
            nbytes = int(memory_bytes * share.percent / _ALL)
            if share.model:
                self._of[share.model] = Budget(share.model, f"the share of {share.model}", nbytes, nbytes)
            else:
                each_bytes = nbytes
        left = memory_bytes - sum(budget.nbytes for budget in self._of.values())
        label = "the memory for models without a share of their own" if self._of else "the node's memory"
        self._others = Budget("", label, left, min(left, each_bytes))

    def of(self, description: Mapping[str, object]) -> Budget:
        """Return the memory that a namespace may take from: by its model's name, or the last part of that."""
        model = str(description.get("model", ""))
        return self._of.get(model) or self._of.get(model.rstrip("/").rpartition("/")[2]) or self._others

    @property
    def all(self) -> list[Budget]:
        """Those of models, and that of the others."""
        return [*self._of.values(), self._others]

    @property
    def free_bytes(self) -> int:
        """What no namespace has."""
        return sum(budget.free_bytes for budget in self.all)

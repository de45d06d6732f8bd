"""What a canary is, and what counts as catching it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest.mock import patch

from kvtide.sim.simulation import Found

Patch = tuple[type, str, Any]
"""Class, attribute, and what it is replaced by."""
Patches = list[Patch]


class BrokenCanary(Exception):
    """A canary that no longer does what it says: it proves nothing, whatever catches it."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A fault that is let in on purpose."""

    fault: str
    name: str
    what: str
    """What is taken away."""
    patches: Callable[[], Patches]
    by: frozenset[str]
    """The invariants that may catch it. Another one would mean that it does something else than it says."""
    raises: str | None = None
    """The exception that ends the engine, if that is what the guard prevents."""
    world: Mapping[str, str] = field(default_factory=dict)
    """The kind of world in which the guard is needed, as `--world` has it."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the fault in, for a while."""
        with ExitStack() as stack:
            for owner, attribute, replacement in self.patches():
                self._check_signature(owner, attribute, replacement)
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield

    def explains(self, found: Found) -> bool:
        """Whether this is what the guard is there to prevent, and not, say, a mistake in a patch."""
        if found.exception is not None:
            return found.exception == self.raises
        return found.invariant in self.by

    def _check_signature(self, owner: type, attribute: str, replacement: Any) -> None:
        """A patch that cannot be called like what it replaces would be caught by its own TypeError."""
        replaced = inspect.getattr_static(owner, attribute)
        if _parameters(replaced) != _parameters(replacement):
            raise BrokenCanary(
                f"{self.name}: {owner.__name__}.{attribute} takes {_parameters(replaced)}, "
                f"and what replaces it {_parameters(replacement)}"
            )


def _parameters(member: Any) -> list[str]:
    """Return how a method is called: names, kinds and defaults. A property is called with nothing but its object."""
    if isinstance(member, property):
        return ["property"]
    empty = inspect.Parameter.empty
    parameters = inspect.signature(member).parameters.values()
    return [str(parameter.replace(annotation=empty)) + f" ({parameter.kind.description})" for parameter in parameters]


def canary(
    fault: str, what: str, *by: str, raises: str | None = None, node: str | None = None
) -> Callable[[Callable[[], Patches]], Canary]:
    """Make a canary of a function that returns its patches. It has the name of the function.

    `node`: the kind of node that its worlds have, as `--world` has it.
    """

    def make(patches: Callable[[], Patches]) -> Canary:
        world = {} if node is None else {"node": node}
        return Canary(fault, patches.__name__.replace("_", "-"), what, patches, frozenset(by), raises, world)

    return make


def around(owner: type, attribute: str, instead: Callable[..., Any]) -> Patch:
    """Return the patch by which a method becomes `instead`, which is given the original, then what that is given."""
    original = inspect.getattr_static(owner, attribute)

    @wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return instead(original, *args, **kwargs)

    return owner, attribute, replacement


def returning(owner: type, attribute: str, value: object = None) -> Patch:
    """Return the patch by which a method does nothing but return a value."""
    return around(owner, attribute, lambda *_, **__: value)

"""Puts a mutant in the place of what was imported.

A function that is in memory gets other code, which costs nothing. What runs on import cannot be changed afterwards:
such a mutant is found by `MutatedImport` instead, in a process that has not imported the core yet.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.mutants.mutant import CORE, Mutant

Where = tuple[str, int]
"""Which function: its file, and the line where it begins."""


def where(code: CodeType) -> Where:
    """Return which function some code is of."""
    return code.co_filename, code.co_firstlineno


def functions_in_memory() -> dict[Where, list[FunctionType]]:
    """Return all functions of the core that have been imported."""
    found: dict[Where, list[FunctionType]] = {}
    gc.unfreeze()  # what a node has set aside is not among the objects
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(str(CORE)):
            found.setdefault(where(thing.__code__), []).append(thing)
    return found


def swap(mutant: Mutant, functions: dict[Where, list[FunctionType]]) -> None:
    """Let the function that a mutant changes have its code."""
    assert mutant.place.function_line is not None
    wanted = str(mutant.path), mutant.place.function_line
    (code,) = (code for code in _codes(compile(mutant.source, wanted[0], "exec")) if where(code) == wanted)
    for function in functions[wanted]:
        function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module and of its classes, not those inside of functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_class = not constant.co_flags & 0x2  # CO_NEWLOCALS: functions have names of their own
            yield from _codes(constant) if is_class else [constant]


class MutatedImport:
    """Put first among `sys.meta_path`: lets one module be imported with other source."""

    def __init__(self, mutant: Mutant) -> None:
        parts = ("kvtide", "core", *Path(mutant.file).with_suffix("").parts)
        self._name = ".".join(parts).removesuffix(".__init__")
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the one module, and leave the others to others."""
        if name != self._name:
            return None
        file = str(self._mutant.path)
        return spec_from_file_location(name, file, loader=_Loader(name, file, self._mutant.source))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, file: str, source: str) -> None:
        super().__init__(name, file)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)

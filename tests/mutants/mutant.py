"""Mutants: all changes of a file, each with a name that stays the same when lines move."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from tests.mutants.changes import changes_of

ROOT = Path(__file__).parent.parent.parent
CORE = ROOT / "src/kvtide/core"
COMMENT = re.compile(r"(^|  )\s*# .*$", re.MULTILINE)
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """Where in a file something is."""

    name: str
    """`Class.method`, or "" outside of all functions and classes."""
    function_line: int | None
    """Where the outermost function around it begins, with its decorators; None for what runs on import."""


@dataclass(frozen=True)
class Mutant:
    """A file of the core with one change."""

    file: str
    """Seen from `core`."""
    place: Place
    line: int
    before: str
    after: str
    source: str
    """The whole file, changed."""
    occurrence: int = 1
    """1, unless the same change can be made to an earlier line of the function that reads the same."""

    @property
    def name(self) -> str:
        """Say what is changed. The same name means the same change, wherever its line has gone."""
        again = f" ({self.occurrence})" if self.occurrence > 1 else ""
        return f"{self.file} {self.place.name or 'module'}: {self.before} → {self.after}{again}"

    @property
    def id(self) -> str:
        """The name, short enough to be typed."""
        return blake2b(self.name.encode(), digest_size=4).hexdigest()

    @property
    def path(self) -> Path:
        """The file it is a change of."""
        return CORE / self.file


def all_mutants() -> list[Mutant]:
    """Return all mutants of the core."""
    return [mutant for path in sorted(CORE.rglob("*.py")) for mutant in mutants_of(path)]


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of one file of the core."""
    return mutants_in(path.read_text(encoding="utf-8"), str(path.relative_to(CORE)))


def mutants_in(source: str, file: str) -> list[Mutant]:
    """Return all mutants of a text, top down."""
    lines = source.encode().splitlines(keepends=True)  # columns of the syntax tree count bytes
    seen = {source}
    times: Counter[tuple[str, str, str]] = Counter()
    mutants: list[Mutant] = []
    for node, place in _walk(ast.parse(source), Place("", None)):
        for where, text in changes_of(node):
            if place.function_line is None and text == "pass":
                continue  # a name that is not there is noticed on import, and one for a type never
            assert where.end_lineno is not None
            assert where.end_col_offset is not None
            first, last = where.lineno - 1, where.end_lineno
            head, tail = lines[first][: where.col_offset], lines[last - 1][where.end_col_offset :]
            changed = head + text.encode() + tail
            result = b"".join([*lines[:first], changed, *lines[last:]]).decode()
            if result in seen:
                continue
            seen.add(result)
            before, after = _one_line(b"".join(lines[first:last])), _one_line(changed)
            times[place.name, before, after] += 1
            count = times[place.name, before, after]
            mutants.append(Mutant(file, place, where.lineno, before, after, result, count))
    return sorted(mutants, key=lambda mutant: mutant.line)


def _one_line(text: bytes) -> str:
    """Write some lines as one, without comments."""
    return " ".join(COMMENT.sub("", text.decode()).split())


def _walk(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    """Yield what may be changed: no imports, annotations, texts, asserts, nor how an error is worded."""
    yield node, place
    for child in _children(node):
        inside = place
        if isinstance(child, FUNCTION | ast.ClassDef):
            inside = place._replace(name=f"{place.name}.{child.name}".lstrip("."))
        if isinstance(node, FUNCTION) and child in node.body and place.function_line is None:
            first = min(part.lineno for part in [node, *node.decorator_list])
            inside = inside._replace(function_line=first)
        yield from _walk(child, inside)


def _children(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return []
    match node:
        case ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.Expr(value=ast.Constant()) | ast.keyword(arg="strict"):
            return []
        case ast.FunctionDef(args=arguments, body=body):
            return [*arguments.defaults, *filter(None, arguments.kw_defaults), *body]
        case ast.ClassDef(body=body):
            return list(body)
        case ast.AnnAssign(value=value):
            return [] if value is None else [value]
        case _:
            return list(ast.iter_child_nodes(node))

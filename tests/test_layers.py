"""Imports go in the direction of the layers only. Files are parsed, not imported.

cli → demo, traces, sim → engine ─┐
                            vllm ─┴→ worker → copy, tiers → core → options → errors
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "kvtide"

BASE = {"errors", "options", "units"}
CORE = BASE | {"core"}
MOVING = CORE | {"copy", "tiers", "worker"}

LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "units": set(),
    "options": {"errors"},
    "core": {"errors", "options"},
    "copy": CORE,
    "tiers": CORE,
    "worker": CORE | {"copy", "tiers"},
    "engine": MOVING,
    "vllm": MOVING,
    "sim": MOVING,
    "traces": MOVING | {"engine", "sim"},
    "demo": MOVING | {"engine", "vllm"},
    "cli": MOVING | {"__init__", "demo", "engine", "sim", "traces"},
    "__init__": CORE,
    "__main__": {"cli"},
}
"""What each part of the package may import, itself aside."""

THIRD_PARTY: dict[str, set[str]] = {
    "copy": {"numpy", "torch", "triton"},
    "tiers": {"cryptography", "mooncake", "numpy", "rich", "valkey", "xxhash"},
    "worker": {"numpy"},
    "engine": {"numpy"},
    "vllm": {"huggingface_hub", "numpy", "ray", "torch", "vllm"},  # the first and ray are vLLM's own
    "sim": set(),
    "traces": {"numpy", "rich"},
    "demo": {"numpy", "rich", "safetensors", "torch", "vllm"},
    "cli": {"rich"},
}
"""What each part may import from elsewhere, the standard library aside."""

PURE = {
    "abc",
    "array",
    "collections",
    "dataclasses",
    "difflib",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "typing",
}
"""All of the standard library that the core may use: no I/O, no threads, no clock, no randomness."""


class Import(NamedTuple):
    """One import statement."""

    file: Path
    line: int
    module: str
    when_running: bool
    """Not only for the type checker."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(SOURCE)}:{self.line} imports {self.module}"


def part_of(file: Path) -> str:
    """Return the part of the package a file belongs to: `core` for src/kvtide/core/groups.py."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def for_type_checker(tree: ast.Module) -> set[int]:
    """Return the lines of what is imported under `if TYPE_CHECKING`."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        node.lineno
        for block in blocks
        for child in block.body
        for node in ast.walk(child)
        if isinstance(node, ast.stmt)
    }


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for file in sorted(PACKAGE.rglob("*.py")) for found in imports_of(file))


def imports_of(file: Path) -> Iterator[Import]:
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    typing_only = for_type_checker(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            assert node.module is not None
            modules = [submodule_or_module(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module in dict.fromkeys(modules):
            yield Import(file, node.lineno, module, node.lineno not in typing_only)


def submodule_or_module(module: str, name: str) -> str:
    """Return what `from module import name` imports: a module of that name, or the module it is in."""
    path = SOURCE.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else module


def parts() -> set[str]:
    return {part_of(file) for file in PACKAGE.rglob("*.py")}


def test_every_part_has_a_layer() -> None:
    assert parts() <= set(LAYERS)


def test_layers_have_no_cycle() -> None:
    assert not cycle({part: sorted(below) for part, below in LAYERS.items()})


@pytest.mark.parametrize("part", LAYERS)
def test_a_part_imports_only_what_is_below_it(part: str) -> None:
    wrong = []
    for found in imports():
        if part_of(found.file) == part and found.module.split(".")[0] == "kvtide":
            target = [*found.module.split("."), "__init__"][1]
            if target != part and target not in LAYERS[part]:
                wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", LAYERS)
def test_a_part_uses_only_the_libraries_it_is_allowed(part: str) -> None:
    allowed = {"kvtide", *sys.stdlib_module_names, *THIRD_PARTY.get(part, ())}
    running = [found for found in imports() if part_of(found.file) == part and found.when_running]
    wrong = [str(found) for found in running if found.module.split(".")[0] not in allowed]
    assert not wrong, "\n".join(wrong)


def test_the_core_uses_nothing_that_acts_or_that_cannot_be_repeated() -> None:
    wrong = [
        str(found)
        for found in imports()
        if part_of(found.file) == "core" and found.module.split(".")[0] not in PURE | {"kvtide", "__future__"}
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["open", "print", "input", "exec", "eval", "__import__"])
def test_the_core_calls_nothing_that_acts(name: str) -> None:
    for file in (PACKAGE / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
            assert not called, f"{file}:{getattr(node, 'lineno', 0)} calls {name}"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, list[str]] = {}
    for found in imports():
        if found.when_running and found.module.startswith("kvtide"):
            graph.setdefault(module_of(found.file), []).append(found.module)
    assert not cycle(graph)


READ_BY_TRITON = PACKAGE / "copy/cuda/kernels.py"
"""Triton looks at the annotations of kernels, so they must not be postponed."""


def test_all_files_use_postponed_annotations() -> None:
    for file in set(PACKAGE.rglob("*.py")) - {READ_BY_TRITON}:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        code = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
        assert not code or ast.unparse(code[0]) == "from __future__ import annotations", file


def cycle(graph: dict[str, list[str]]) -> list[str]:
    """Return a circle in a graph, or nothing."""
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        for following in graph.get(node, ()):
            if found := visit(following):
                return found
        path.pop()
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node))), [])

"""What the files of the package import. They are parsed, not imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "kvtide"


class Import(NamedTuple):
    """One module that a file imports."""

    file: Path
    line: int
    module: str
    when_running: bool
    """Not only for the type checker."""
    by_name: bool = False
    """With `importlib`, when it is needed."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(SOURCE)}:{self.line} imports {self.module}"


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for file in sorted(PACKAGE.rglob("*.py")) for found in imports_of(file))


def imports_of(file: Path) -> Iterator[Import]:
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    typing_only = for_type_checker(tree)
    for node in ast.walk(tree):
        by_name = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            assert node.module is not None
            modules = [submodule_or_module(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and by_name:
            modules = named(node.args[0], tree)
            assert modules, f"{file}:{node.lineno}: nobody can see what this imports: {ast.unparse(node)}"
        else:
            continue
        for module in dict.fromkeys(modules):
            yield Import(file, node.lineno, module, node.lineno not in typing_only, by_name)


def named(argument: ast.expr, tree: ast.Module) -> list[str]:
    """Return the modules that `import_module` is given: a literal, or all values of a table of this file."""
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    names = {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}
    tables = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in names]
    values = [value for table in tables if isinstance(table, ast.Dict) for value in table.values]
    return [str(value.value) for value in values if isinstance(value, ast.Constant)]


def for_type_checker(tree: ast.Module) -> set[int]:
    """Return the lines of what is imported under `if TYPE_CHECKING`."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    nodes = [node for block in blocks for child in block.body for node in ast.walk(child)]
    return {node.lineno for node in nodes if isinstance(node, ast.stmt)}


def submodule_or_module(module: str, name: str) -> str:
    """Return what `from module import name` imports: a module of that name, or the module it is in."""
    path = SOURCE.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else module


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def part_of(module: str, package: str) -> str | None:
    """Return the part of a package that a module belongs to: `core` for `kvtide.core.groups` in `kvtide`."""
    if not f"{module}.".startswith(f"{package}."):
        return None
    return module.removeprefix(package).split(".", 2)[1] if module != package else "__init__"


def parts(package: str) -> set[str]:
    """Return the names of all parts of a package."""
    return {part for file in PACKAGE.rglob("*.py") if (part := part_of(module_of(file), package)) is not None}


def circle(graph: dict[str, list[str]]) -> list[str]:
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

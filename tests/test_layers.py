"""Who imports whom: as the tables here say and as docs/engineers/architecture.md draws it, no more and no less."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvtide.cli import MODULES
from kvtide.tiers.config import KINDS
from tests.imports import PACKAGE, Import, circle, imports, imports_of, module_of, part_of, parts

DRAWN_IN = Path(__file__).parent.parent / "docs" / "engineers" / "architecture.md"

LAYERS: Mapping[str, Mapping[str, str]] = {
    "kvtide": {
        "redaction": "",
        "errors": "redaction",
        "output": "",
        "packages": "",
        "progress": "",
        "signals": "",
        "units": "",
        "latency": "",
        "options": "errors",
        "json_option": "errors redaction",
        "commands": "errors options",
        "schema": "errors options",
        "completion": "errors",
        "core": "errors options",
        "copy": "core errors latency options units",
        "tiers": "commands core errors latency options output packages progress redaction schema units",
        "worker": "copy core errors tiers",
        "node": "__init__ commands copy core errors json_option options output tiers units",
        "engine": "copy core errors node options tiers worker",
        "vllm": "__init__ copy core errors latency node options redaction schema tiers units worker",
        "sim": "commands copy core errors node options progress tiers worker",
        "traces": "commands copy core engine errors options output packages progress units",
        "demo": "commands copy core engine errors node options output progress units",
        "doctor": "commands copy core errors json_option node options output packages tiers units vllm",
        "top": "commands errors output progress redaction units",
        "cli": "__init__ commands completion errors redaction signals",
        "__init__": "core errors",
        "__main__": "cli",
    },
    "kvtide.core": {
        "groups": "",
        "reasons": "",
        "linear_fit": "",
        "break_even": "linear_fit",
        "chain": "groups",
        "device": "groups",
        "messages": "groups",
        "metrics": "reasons",
        "orphans": "groups",
        "eviction": "groups",
        "events": "groups metrics",
        "config": "eviction groups",
        "ready_slots": "messages",
        "share": "messages",
        "host_pool": "chain events eviction groups messages metrics orphans",
        "match": "groups host_pool reasons",
        "requests": "groups match",
        "ledger": "chain match messages metrics requests",
        "below": "break_even chain config groups host_pool ledger match messages metrics reasons requests",
        "index": "below chain config events groups host_pool ledger match messages metrics reasons requests",
        "loading": "break_even config device groups index ledger linear_fit match messages metrics reasons requests",
        "storing": "chain config device groups index ledger metrics reasons requests",
        "manager": "config device events groups index ledger loading match messages metrics ready_slots requests"
        " storing",
        "__init__": "config device events eviction groups manager match messages metrics reasons",
    },
    "kvtide.tiers": {
        "admin": "",
        "base": "",
        "batches": "",
        "breaker": "",
        "encryption": "",
        "log_once": "",
        "thread_priority": "",
        "call_queue": "base batches",
        "record": "base encryption log_once",
        "backend": "base record",
        "meter": "base call_queue",
        "namespace": "record",
        "config": "admin base encryption namespace",
        "queued": "backend base breaker call_queue meter",
        "watchdog": "backend breaker config log_once queued",
        "memory": "backend base record",
        "disk": "admin backend base config log_once namespace queued record",
        "mooncake": "admin backend base batches config namespace queued record watchdog",
        "null": "base config namespace",
        "valkey": "admin backend base batches breaker config log_once namespace queued record thread_priority watchdog",
        "faulty": "backend base breaker memory queued",
        "clears": "base log_once",
        "places": "",
        "stack": "base clears config namespace places",
        "found_lines": "",
        "cli": "admin config found_lines",
        "__init__": "backend base config faulty memory namespace null queued stack",
    },
    "kvtide.node": {
        "errors": "",
        "huge_pages": "",
        "lines": "",
        "loop": "",
        "exported": "",
        "processes": "errors",
        "systemd": "",
        "pages": "",
        "touching": "pages",
        "frames": "errors",
        "hello": "errors frames",
        "mapped": "errors hello",
        "arenas": "errors hello huge_pages mapped touching",
        "block_sizes": "errors",
        "tiers": "arenas loop systemd",
        "metrics": "exported tiers",
        "shown": "tiers",
        "connection": "errors frames",
        "credentials": "errors",
        "socket_path": "",
        "listening": "errors socket_path",
        "namespaces": "",
        "packed": "errors",
        "codec": "errors frames packed",
        "described_groups": "errors namespaces",
        "owners": "errors",
        "option": "",
        "space": "arenas block_sizes errors hello namespaces shares",
        "shares": "",
        "giving_back": "arenas shares",
        "room": "arenas errors giving_back huge_pages shares",
        "settings": "huge_pages shares tiers",
        "handler": "arenas frames hello owners",
        "peers": "connection credentials frames hello owners",
        "lives": "handler hello loop owners processes",
        "door": "errors listening loop",
        "strangers": "frames hello lines namespaces",
        "spaces": "arenas block_sizes codec described_groups errors frames hello lines namespaces owners room shares"
        " space strangers tiers",
        "server": "arenas connection credentials door errors frames handler hello lines listening lives loop"
        " owners peers turns",
        "turns": "codec frames peers",
        "node": "credentials hello listening loop metrics owners peers server settings spaces systemd tiers",
        "client": "connection credentials errors frames hello mapped",
        "link": "client errors frames hello",
        "index_link": "client codec errors frames hello link",
        "ask": "client errors frames hello",
        "cli_operate": "ask shown",
        "cli": "cli_operate lines node settings tiers",
        "memory": "client errors hello link",
        "__init__": "",
    },
}
"""What each part of a package imports of the others. Kinds of tiers are imported by name, too."""

THIRD_PARTY = {
    "commands": "click",
    "schema": "pydantic pydantic_core",
    "completion": "click",
    "output": "rich",
    "progress": "rich",
    "cli": "click",
    "copy": "numba numpy torch triton",
    "tiers": "click cryptography mooncake numpy pydantic valkey xxhash",
    "node": "click prometheus_client",
    "engine": "numpy",
    "vllm": "huggingface_hub numpy prometheus_client pydantic ray torch vllm",  # the rest is vLLM's own
    "traces": "click matplotlib numpy rich tokenizers torch",
    "demo": "numpy rich safetensors torch vllm",
    "doctor": "numpy rich",
    "top": "click prometheus_client rich",
}
"""What each part imports from elsewhere, the standard library aside."""

PURE = "__future__ abc array collections dataclasses enum functools heapq itertools math typing"
"""What the core uses of the standard library: no I/O, no threads, no clock, no randomness."""

PARTS = [(package, part) for package, layers in LAYERS.items() for part in layers]


@pytest.mark.parametrize("package", LAYERS)
def test_every_part_has_a_layer_and_every_layer_is_there(package: str) -> None:
    assert set(LAYERS[package]) == parts(package)


@pytest.mark.parametrize(("package", "part"), PARTS)
def test_a_part_imports_what_its_layer_says_and_all_of_it(package: str, part: str) -> None:
    used: dict[str, Import] = {}
    for found in imports():
        target = part_of(found.module, package)
        if target not in (None, part) and part_of(module_of(found.file), package) == part and not found.by_name:
            used[str(target)] = found
    granted = set(LAYERS[package][part].split())
    new = "\n".join(str(found) for target, found in used.items() if target not in granted)
    assert set(used) == granted, f'now it is "{part}": "{" ".join(sorted(used))}"\n{new}'


@pytest.mark.parametrize("package", LAYERS)
def test_imports_go_with_the_arrows_of_the_drawing(package: str) -> None:
    columns = drawing(package)
    assert sorted(columns) == sorted(set(LAYERS[package]) - {"__init__", "__main__"})
    for part in columns:
        for target in set(LAYERS[package][part].split()) - {"__init__"}:
            assert columns[part] < columns[target], f"{part} imports {target}"


def drawing(package: str) -> dict[str, int]:
    """Return the column of each part in the drawing of a package: `a → b, c → d`, over one line or more."""
    section = DRAWN_IN.read_text(encoding="utf-8").split("## Who imports whom\n")[1].split("\n## ")[0]
    drawings = [block.split("→") for block in section.strip("\n").split("\n\n") if block.startswith("    ")]
    columns = drawings[list(LAYERS).index(package)]
    return {name.strip(): column for column, names in enumerate(columns) for name in names.split(",")}


@pytest.mark.parametrize("part", LAYERS["kvtide"])
def test_a_part_uses_the_libraries_it_is_allowed_and_all_of_them(part: str) -> None:
    ours = {"kvtide", *sys.stdlib_module_names}
    running = {top(found) for found in of_part(part) if found.when_running}
    assert running - ours == set(THIRD_PARTY.get(part, "").split())


def test_the_core_uses_nothing_that_acts_or_that_cannot_be_repeated() -> None:
    assert {top(found) for found in of_part("core")} - {"kvtide"} == set(PURE.split())


def of_part(part: str) -> list[Import]:
    return [found for found in imports() if part_of(module_of(found.file), "kvtide") == part]


def top(found: Import) -> str:
    return found.module.split(".")[0]


@pytest.mark.parametrize("name", ["open", "print", "input", "exec", "eval", "__import__"])
def test_the_core_calls_nothing_that_acts(name: str) -> None:
    for file in (PACKAGE / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
            assert not called, f"{file}:{getattr(node, 'lineno', 0)} calls {name}"


def test_kinds_of_tiers_and_commands_are_imported_by_name_and_nothing_else_of_ours_is() -> None:
    by_name = {(module_of(found.file), found.module) for found in imports() if found.by_name and top(found) == "kvtide"}
    kinds = {("kvtide.tiers.config", module) for module in KINDS.values()}
    commands = {("kvtide.cli", module) for module in MODULES.values()}
    need_more = {
        ("kvtide.copy.cuda.torch_gpu", "kvtide.copy.cuda.kernels"),
        ("kvtide.copy.cuda.torch_gpu", "kvtide.copy.cuda.packing_kernels"),
        ("kvtide.copy.packing.codec", "kvtide.copy.packing.compiled"),
    }
    assert by_name == {*kinds, *commands, *need_more}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, list[str]] = {}
    for found in imports():
        if found.when_running and not found.by_name and top(found) == "kvtide":
            graph.setdefault(module_of(found.file), []).append(found.module)
    assert not circle(graph)


def test_an_import_by_name_is_seen_and_one_that_cannot_be_seen_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("TABLE: dict[str, str] = {'a': 'json', 'b': 're'}\nimport_module(TABLE[a])\nimport_module('os')\n")
    assert [(found.module, found.by_name) for found in imports_of(file)] == [("json", True), ("re", True), ("os", True)]
    file.write_text("importlib.import_module(argument)\n")
    with pytest.raises(AssertionError, match="nobody can see what this imports"):
        list(imports_of(file))


READ_BY_TRITON = {PACKAGE / "copy/cuda/kernels.py", PACKAGE / "copy/cuda/packing_kernels.py"}
"""Triton looks at the annotations of kernels, so they must not be postponed."""


def test_all_files_use_postponed_annotations() -> None:
    for file in set(PACKAGE.rglob("*.py")) - READ_BY_TRITON:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        code = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
        assert not code or ast.unparse(code[0]) == "from __future__ import annotations", file

"""The mutants themselves: every change is made, has a name of its own, and is noticed where somebody looks."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from tests.mutants import equivalent
from tests.mutants.fork import in_a_fork
from tests.mutants.mutant import CORE, ROOT, Mutant, mutants_in, mutants_of
from tests.mutants.swap import MutatedImport, functions_in_memory, swap

# Tests may run beside threads (of xdist, which waits in them). The forks here do next to nothing.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def afters(line: str) -> set[str]:
    """Return what becomes of one line of a function."""
    return {mutant.after for mutant in mutants_in(f"def f(a, b):\n    {line}\n", "f.py")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if a < b: call()", {"if True: call()", "if False: call()", "if a <= b: call()", "if a < b: pass"}),
        ("return a in b", {"return a not in b", "return None"}),
        ("return a and b", {"return (a)", "return (b)", "return None"}),
        ("return not a", {"return a", "return None"}),
        ("return a + 1", {"return (a - 1)", "return a + 2", "return a + 0", "return None"}),
        ("a.b = True", {"pass", "a.b = False"}),
        ("a.b += b", {"pass", "a.b -= b"}),
        ("return a[b:]", {"return a[:]", "return None"}),
        ("return min(a, key=b)", {"return max(a, key=b)", "return min(a)", "return None"}),
        ("while a: break", {"while False: break", "while a: continue", "while a: pass"}),
        ("return [b for b in a if b]", {"return [b for b in a if True]", "return None"}),
        ("raise KeyError(1)", {"pass"}),
        ("assert a == 1", set()),
        ("return f'{a + 1}'", {"return None"}),
        ("return list(zip(a, b, strict=True))", {"return None"}),
    ],
)
def test_what_people_get_wrong_is_tried(line: str, expected: set[str]) -> None:
    assert afters(line) == expected


def test_a_name_stays_the_same_when_lines_move() -> None:
    source = "class A:\n    def f(self):\n        return self.x + 1\n"
    names = [mutant.name for mutant in mutants_in(source, "f.py")]
    assert "f.py A.f: return self.x + 1 → return (self.x - 1)" in names
    moved = "# moved\n\n" + source.replace("+ 1", "+ 1  # why")
    assert names == [mutant.name for mutant in mutants_in(moved, "f.py")]


def test_lines_that_read_the_same_have_names_of_their_own() -> None:
    mutants = mutants_in("def f(a):\n    a.g()\n    a.h()\n    a.g()\n", "f.py")
    assert [mutant.name.split(": ")[1] for mutant in mutants] == ["a.g() → pass", "a.h() → pass", "a.g() → pass (2)"]


def test_all_mutants_of_the_core_can_be_compiled_and_told_apart() -> None:
    mutants = mutants_of(CORE / "host_pool.py")
    for mutant in mutants:
        compile(mutant.source, mutant.file, "exec")
    assert len({mutant.id for mutant in mutants}) == len(mutants) > 100


def named(file: str, name: str) -> Mutant:
    (found,) = (mutant for mutant in mutants_of(CORE / file) if mutant.name == name)
    return found


def test_a_function_in_memory_is_changed_in_the_fork_only() -> None:
    group = import_module("kvtide.core.groups").FullAttention(4)
    mutant = named("groups.py", "groups.py Group.can_resume_at: return True → return False")
    functions = functions_in_memory()

    def changed() -> str:
        swap(mutant, functions)
        return str(group.can_resume_at(4))

    assert in_a_fork(changed) == "False"
    assert group.can_resume_at(4)


def test_what_runs_on_import_is_changed_by_importing_it_again() -> None:
    mutant = named("storing/stores.py", "storing/stores.py module: ATTEMPTS_MAX = 3 → ATTEMPTS_MAX = 4")

    def changed() -> str:
        sys.modules.pop("kvtide.core.storing.stores", None)
        sys.meta_path.insert(0, MutatedImport(mutant))
        return str(import_module("kvtide.core.storing.stores").ATTEMPTS_MAX)

    assert in_a_fork(changed) == "4"


def test_a_process_that_ends_is_told_from_one_that_answers() -> None:
    def ends() -> None:
        raise SystemExit

    assert in_a_fork(ends) == "the process ends"
    assert in_a_fork(lambda: None) is None


def test_the_list_gives_a_reason_for_each() -> None:
    assert equivalent.read("# why\na: b → c\n    Because\n    of this.\n") == {"a: b → c": "Because of this."}
    for text in ("a\n", "a\nb\n    why\n", "    why\n", "a\n    why\na\n    why\n"):
        with pytest.raises(ValueError, match=r"reason|twice"):
            equivalent.read(text)


def test_the_list_as_it_is_can_be_read() -> None:
    equivalent.read(equivalent.LIST.read_text(encoding="utf-8"))


def test_what_is_on_the_list_and_not_in_the_source_is_named() -> None:
    assert equivalent.gone({"a": "why", "b": "why"}, {"b", "c"}) == ["a"]


def command(mutant: Mutant) -> subprocess.CompletedProcess[str]:
    options = ["--quick", "--tests", "tests/core/test_messages.py", "--mutant", mutant.id]
    return subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-m", "tests.mutants", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_command_is_content_when_a_mutant_is_caught() -> None:
    (caught,) = (
        m for m in mutants_of(CORE / "messages.py") if (m.place.name, m.after) == ("Plan.__bool__", "return None")
    )
    done = command(caught)
    assert "1 tried, 1 caught, 0 survived" in done.stdout
    assert "caught by tests/core/test_messages.py::" in done.stdout
    assert done.returncode == 0, done.stdout


def test_the_command_fails_and_says_where_when_a_mutant_survives() -> None:
    survivor = mutants_of(CORE / "eviction/forecast/policy.py")[-1]
    done = command(survivor)
    assert f"src/kvtide/core/{survivor.file}:{survivor.line}  --mutant {survivor.id}" in done.stdout
    assert done.returncode == 1, done.stdout

"""The documents tell the truth: the README's Python runs, links and paths lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def test_the_engine_example_prints_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[0], "README.md", "exec"), {})  # noqa: S102 (our own text)
    assert f"`{capsys.readouterr().out.strip()}`" in (ROOT / "README.md").read_text()


def test_the_library_example_stores_and_loads() -> None:
    exec(compile(BLOCKS[1], "README.md", "exec"), {})  # noqa: S102 (our own text; it ends with an assert)


def test_the_engine_example_has_at_most_15_lines_of_code() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 15


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_paths_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    folder = (ROOT / document).parent
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (folder / target).exists(), target
    for path in re.findall(
        r"`((?:src|tests|docs|benchmarks|core|copy|engine|demo|sim|tiers|traces|vllm)/[\w/]*(?:\.py|\.md|/))", text
    ):
        assert (ROOT / path).exists() or (ROOT / "src/kvtide" / path).exists(), path


def test_names_in_the_architecture_are_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    text = (ROOT / "docs/engineers/architecture.md").read_text()
    for name in re.findall(r"`(?:\w+\.)*(\w+)`", text):
        assert re.search(rf"\b{name}\b", code), name

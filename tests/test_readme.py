"""The documents tell the truth: their Python runs, links and paths lead somewhere, the site can be built."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

import kvtide
from kvtide import OPTIONS
from kvtide.cli import KVTIDE
from kvtide.core import NotLoaded, NotStored
from kvtide.tiers import parse_tiers

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "deploy/README.md",
    "examples/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]


def python_in(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)


def test_the_engine_example_prints_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = python_in("README.md")
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 (our own text)
    assert f"`{capsys.readouterr().out.strip()}`" in (ROOT / "README.md").read_text()


def test_the_library_example_stores_and_loads() -> None:
    (code,) = python_in("docs/users/library.md")
    exec(compile(code, "library.md", "exec"), {})  # noqa: S102 (our own text; it ends with an assert)


def test_the_engine_example_has_at_most_15_lines_of_code() -> None:
    (code,) = python_in("README.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


def test_the_readme_is_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_commands_in_the_readme_are_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    commands = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test"} <= commands <= targets


def commands_shown(document: str) -> list[tuple[click.Command, str]]:
    """Return each command of kvtide that a document shows, and what follows on its line or in its code span."""
    found = []
    for words in re.findall(r"\bkvtide ([a-z][^`\n]*)", (ROOT / document).read_text()):
        command: click.Command | None = KVTIDE
        rest = words.split()
        while isinstance(command, click.Group) and rest:
            command = command.get_command(click.Context(command), rest.pop(0))
        if command is not None:
            found.append((command, " ".join(rest)))
    return found


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if commands_shown(name)])
def test_options_of_commands_that_are_shown_exist(document: str) -> None:
    for command, rest in commands_shown(document):
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest)) <= known, f"{command.name} {rest}"


def test_where_hits_are_low_the_runbook_begins_with_advice_and_names_reasons_that_exist() -> None:
    text = (ROOT / "docs/operators/runbook.md").read_text()
    (section,) = re.findall(r"## Hits are low[^\n]*\n\n(.*?)\n## ", text, flags=re.DOTALL)
    assert section.startswith("1. `kvtide advise HOST:8000 --since-start`")
    reasons = re.findall(r"^\| not (loaded|stored): `(\w+)`", section, flags=re.MULTILINE)
    known: dict[str, type[NotLoaded | NotStored]] = {"loaded": NotLoaded, "stored": NotStored}
    assert {known[what](why) for what, why in reasons} >= {NotLoaded.NOT_CACHED, NotLoaded.NODE_AWAY}


def test_the_runbook_names_every_alert_and_no_other() -> None:
    rules = "\n".join(path.read_text() for path in sorted((ROOT / "deploy").glob("alerts*.yml")))
    alerts = re.findall(r"^ *- alert: (\w+)$", rules, flags=re.MULTILINE)
    rows = re.findall(r"^\| `(KVTide\w+)` \|", (ROOT / "docs/operators/runbook.md").read_text(), flags=re.MULTILINE)
    assert alerts
    assert sorted(rows) == sorted(alerts)


def anchors(document: Path) -> set[str]:
    """Return what can be linked to in a document, as GitHub and the site name it."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_paths_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    folder = (ROOT / document).parent
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        linked = folder / target if target else ROOT / document
        assert linked.exists(), target
        # The site's own build looks at the anchors of the API reference, which are made of names in the code.
        assert not anchor or anchor.startswith("kvtide.") or anchor in anchors(linked), f"{target}#{anchor}"
    for path in re.findall(
        r"`((?:src|tests|docs|benchmarks|deploy|examples|tools|core|copy|doctor|engine|demo|sim|tiers|top|traces|vllm)/[\w/]*(?:\.py|\.md|/))",
        text,
    ):
        assert (ROOT / path).exists() or (ROOT / "src/kvtide" / path).exists(), path


@pytest.mark.parametrize("folder", ["vllm", "node", "traces"])
def test_the_map_of_a_folder_has_each_of_its_files_and_no_other(folder: str) -> None:
    text = (ROOT / "docs/engineers/architecture.md").read_text()
    shown = text.split(f"### In `{folder}/`")[1].split("\n#")[0]
    code = ROOT / "src/kvtide" / folder
    below = {path.parent.name for path in code.glob("*/*") if path.parent.name != "__pycache__"}
    files = {path.name for path in code.glob("*.py") if path.name != "__init__.py"}
    in_tiers = {path.name for path in code.glob("tiers/*.py") if path.name != "__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", shown)) == files | in_tiers
    assert set(re.findall(r"`(\w+)/`", shown)) == below


def test_every_benchmark_is_in_the_index_and_no_other() -> None:
    text = (ROOT / "benchmarks/README.md").read_text()
    files = {path.name for path in (ROOT / "benchmarks").iterdir() if path.suffix in {".py", ".json"}}
    rows = "\n".join(line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `"))
    named = re.findall(r"`(\w+\.\w+)", rows)
    assert sorted(named) == sorted(files)


@pytest.mark.parametrize("page", ["architecture.md", "tiers.md"])
def test_names_in_the_pages_about_the_code_are_in_the_code(page: str) -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    text = (ROOT / "docs/engineers" / page).read_text()
    for name in re.findall(r"`(?:\w+\.)*([A-Za-z_]\w*)`", text):
        assert re.search(rf"\b{name}\b", code), name


def test_the_site_is_built_without_a_warning_and_with_every_page(tmp_path: Path) -> None:
    result = subprocess.run(  # noqa: S603 (a command of ours)
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # Not by `--quiet`, which takes the warnings away before they are counted.
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    api = (tmp_path / "engineers/api/index.html").read_text()
    for name in ("kvtide.OffloadManager.match", "kvtide.copy.CopyEngine.submit", "kvtide.tiers.Item.buffer"):
        assert f'id="{name}"' in api
    missing = [name for name in kvtide.__all__ if not re.search(rf'id="kvtide\.(errors\.)?{name}"', api)]
    assert missing == ["__version__"]


def test_the_manifest_for_kubernetes_can_be_read_and_its_options_mean_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/operators/kubernetes.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    pod = yaml.safe_load(block)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = dict(argument.split("=", 1) for argument in container["args"] if argument.startswith("--"))
    assert int(arguments["--shutdown-timeout"]) < pod["terminationGracePeriodSeconds"]
    options = json.loads(arguments["--kv-transfer-config"])["kv_connector_extra_config"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    (disk,) = options["tiers"]
    assert {disk["path"], "/dev/shm"} == mounts  # noqa: S108 (vLLM's shared memory)
    assert disk["encryption_key_env"] in {variable["name"] for variable in container["env"]}
    monkeypatch.setenv(disk["encryption_key_env"], "0" * 64)
    (tier,) = parse_tiers([{**disk, "path": str(tmp_path), "size": "64MiB"}])
    assert tier.place == str(tmp_path)


def test_the_memory_limits_of_the_examples_keep_to_the_rule_beside_them() -> None:
    text = (ROOT / "docs/operators/kubernetes.md").read_text()
    assert "what vLLM takes without kvtide, plus `host`, plus the shared memory below, plus a tenth" in text
    (parts,) = re.findall(r"(\d+) GiB for kvtide, (\d+) for shared memory and (\d+) for vLLM are (\d+)", text)
    host, shared, engine, total = map(int, parts)
    assert host + shared + engine == total
    assert set(re.findall(r'"host":"(\w+)"', text)) == {f"{host}GiB"}
    assert re.findall(r"--shm-size (\d+)g|sizeLimit: (\d+)Gi", text) == [(str(shared), ""), ("", str(shared))]
    limits = [int(limit) for limit in re.findall(r"(?:--memory |memory: )(\d+)(?:g|Gi)\b", text)]
    assert limits == [math.ceil(1.1 * total)] * 2


FLAG = r"--kv-transfer-config\s*(?:\\\n\s*)?'(\{.*?\})'"
WITH_FLAG = [name for name in DOCUMENTS if re.search(FLAG, (ROOT / name).read_text(), re.DOTALL)]


def test_the_flag_is_shown_where_people_begin() -> None:
    assert {"README.md", "docs/index.md", "docs/users/vllm.md"} <= set(WITH_FLAG)


@pytest.mark.parametrize("document", WITH_FLAG)
def test_the_flag_is_json_with_options_that_exist(document: str) -> None:
    for flag in map(json.loads, re.findall(FLAG, (ROOT / document).read_text(), flags=re.DOTALL)):
        assert flag["kv_connector"] == "KVTideConnector"
        assert flag["kv_role"] == "kv_both"
        assert flag["kv_connector_extra_config"].keys() <= {*OPTIONS, "tiers", "node", "packing"}

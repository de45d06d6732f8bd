"""What is published: wheel and sdist can be built, installed and shown on PyPI, and know their version from git."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from kvtide.packages import PACKAGES

ROOT = Path(__file__).parents[1]
COMMIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "--allow-empty", "-m", "a"]


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command that has to succeed; return what it prints to stdout."""
    result = subprocess.run(  # noqa: S603 (a command of ours)
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from the sdist, with the tools that are installed; return their folder."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_pypi_accepts_wheel_and_sdist_and_shows_the_readme(built: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir())


def test_the_readme_on_pypi_has_no_link_that_only_works_in_a_clone(metadata: Message) -> None:
    text = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()))
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_package_says_where_its_home_documents_issues_and_changes_are(metadata: Message) -> None:
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Issues", "Changelog"} <= set(urls)
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
    assert f"]({urls['Homepage']}/" in str(metadata.get_payload())


def test_errors_name_the_packages_that_the_extras_bring(metadata: Message) -> None:
    needed = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    for extra in {*metadata.get_all("Provides-Extra", [])} - {"dev"}:
        brings = [need for need in needed if need.marker and need.marker.evaluate({"extra": extra})]
        assert [f"{need.name}{need.specifier}" for need in brings] == [str(Requirement(PACKAGES[extra]))]


def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "kvtide/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {re.sub(r"^kvtide-[^/]+\.dist-info$", "dist-info", name.split("/")[0]) for name in names} == {
        "kvtide",
        "dist-info",
    }


def test_the_sdist_holds_every_file_of_the_clone_but_hidden_ones(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    in_git = {name for name in run("git", "ls-files").splitlines() if not name.startswith(".")}
    assert in_git - packed == set()


def test_the_installed_wheel_has_the_command_its_version_and_the_plug_in_of_vllm(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", tmp_path, wheel)
    version = wheel.name.split("-")[1]
    assert run(tmp_path / "bin/kvtide", "--version", cwd=tmp_path, PYTHONPATH=str(tmp_path)) == f"kvtide {version}\n"
    entry = "from importlib.metadata import distribution as d; print(*(e.value for e in d('kvtide').entry_points))"
    assert "kvtide.vllm.plugin:register" in run(sys.executable, "-c", entry, cwd=tmp_path, PYTHONPATH=str(tmp_path))


def version_in(folder: Path) -> Version:
    return Version(run(sys.executable, "-m", "hatchling", "version", cwd=folder).strip())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a source tree without git, as far as the version is concerned."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    return tmp_path


def test_a_tree_without_git_has_a_version(tree: Path) -> None:
    version = version_in(tree)
    assert version.is_devrelease
    assert version.local is None


def test_a_clone_without_tags_is_before_the_first_release_and_names_its_commit(tree: Path) -> None:
    run("git", "init", "--quiet", cwd=tree)
    run("git", "add", ".", cwd=tree)
    run(*COMMIT, cwd=tree)
    version = version_in(tree)
    assert Version("0.1.0.dev0") < version < Version("0.1.0")
    assert version.local is not None
    assert version.local.startswith("g" + run("git", "rev-parse", "--short=7", "HEAD", cwd=tree).strip())


def test_a_tag_is_the_version_and_commits_behind_it_come_before_the_next_one(tree: Path) -> None:
    run("git", "init", "--quiet", cwd=tree)
    run("git", "add", ".", cwd=tree)
    run(*COMMIT, cwd=tree)
    run("git", "tag", "v0.2.0", cwd=tree)
    assert version_in(tree) == Version("0.2.0")
    run(*COMMIT, cwd=tree)
    assert Version("0.2.0") < version_in(tree) < Version("0.2.1")

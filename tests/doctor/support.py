"""Machines that the doctor's tests look at: folders with the files that checks read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvtide.doctor.base import Finding, Health
from kvtide.doctor.machine import Machine

FIXED_SEED = 'DEFAULT_NONE_HASH_SEED = "vllm-none-hash"\n'


def machine(
    root: Path,
    files: Mapping[str, str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    nvidia_smi: str | None = None,
    packages: Path | None = None,
) -> Machine:
    """Return a machine with such files, and with nothing else."""
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = (str(packages),) if packages is not None else ()
    return Machine(root, environ or {}, lambda command: nvidia_smi if command[0] == "nvidia-smi" else None, found)


def install_vllm(packages: Path, version: str = "0.32.0", *, distribution: str = "vllm", source: str = "") -> Path:
    """Install a vLLM that cannot be imported, for the doctor must not do that; return where."""
    (packages / "vllm/v1/core").mkdir(parents=True)
    (packages / "vllm/__init__.py").write_text("raise SystemExit('vLLM was imported')\n")
    (packages / "vllm/_version.py").write_text(f"__version__ = version = '{version}'\n")
    (packages / "vllm/v1/core/kv_cache_utils.py").write_text(source)
    _install(packages, distribution, version, "")
    return packages


def install_plugin(packages: Path) -> Path:
    """Install what pip writes about kvtide, and return where."""
    _install(packages, "kvtide", "0.1.0", "[vllm.general_plugins]\nkvtide = kvtide.vllm.plugin:register\n")
    return packages


def _install(packages: Path, name: str, version: str, entry_points: str) -> None:
    about = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(entry_points)


def is_ok(finding: Finding, *words: str) -> bool:
    return finding.health is Health.OK and not finding.advice and all(word in finding.found for word in words)


def is_warning(finding: Finding, found: str, advice: str) -> bool:
    return finding.health is Health.WARNING and found in finding.found and advice in finding.advice


def is_bad(finding: Finding, found: str, advice: str) -> bool:
    return finding.health is Health.BAD and found in finding.found and advice in finding.advice

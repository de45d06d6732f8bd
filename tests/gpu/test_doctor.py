"""`kvtide doctor` on a machine with a GPU: what it says of GPU, link and NUMA is what torch and the kernel say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from kvtide.doctor.gpus import check_gpus, check_links, find_gpus
from kvtide.doctor.machine import Machine
from tests.doctor.support import is_ok

FOUND = find_gpus(Machine())


def doctor(folder: Path, *arguments: str) -> tuple[int, Any]:
    command = [sys.executable, "-m", "kvtide", "doctor", "--json", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
    assert done.stdout, done.stderr
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)}


def test_the_gpus_are_those_that_torch_sees() -> None:
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    assert [gpu.name.partition(" (")[0] for gpu in FOUND] == names
    assert is_ok(check_gpus(FOUND))


def test_the_bus_addresses_are_those_by_which_the_copy_engine_finds_its_numa_node() -> None:
    of_torch = torch.cuda.get_device_properties(0)
    assert FOUND[0].slot == f"{of_torch.pci_domain_id:04x}:{of_torch.pci_bus_id:02x}:{of_torch.pci_device_id:02x}.0"


def test_without_nvidia_smi_the_gpus_are_those_of_the_driver_s_files() -> None:
    files = Path("/proc/driver/nvidia/gpus")
    known = sorted(path.name for path in files.iterdir()) if files.is_dir() else []  # some sandboxes show none
    gpus = find_gpus(Machine(output_of=lambda command: None))
    assert [gpu.slot for gpu in gpus if gpu.answers] == known
    assert {gpu.slot for gpu in FOUND} >= set(known)


def test_the_link_is_named_also_where_the_machine_does_not_say_how_wide_it_is() -> None:
    assert "PCIe" in check_links(FOUND).found


def test_the_whole_command_has_an_opinion_on_everything(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, "--config", '{"host": "64MiB"}')
    assert [check for check in found.values() if "could not be checked" in check["found"]] == []
    assert [check for check in found.values() if "no answer" in check["found"]] == []
    assert found["gpu"]["health"] == "ok"
    assert "PCIe" in found["link"]["found"]
    assert found["memory"]["health"] == found["pinning"]["health"] == "ok"
    assert code == int(any(check["health"] == "bad" for check in found.values()))

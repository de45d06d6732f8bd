"""The GPUs of this machine and the links to them: by nvidia-smi, else by the driver's files, else by the bus."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvtide.doctor.base import Finding, bad, ok, warning
from kvtide.doctor.machine import Machine

_FIELDS = (
    "name,pci.bus_id,memory.total,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
)
QUERY = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Generations of PCIe by the billions of transfers a second that the kernel says."""
_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


class Link(NamedTuple):
    """A link of PCIe. None: nobody says."""

    generation: int | None
    width: int | None

    def __str__(self) -> str:
        generation, width = self.generation or "?", self.width or "?"
        return f"PCIe {generation} x{width}{self._speed}"

    @property
    def _speed(self) -> str:
        lane_gb_s = _LANE_GB_S.get(self.generation or 0)
        return f" ({lane_gb_s * self.width:.3g} GB/s)" if lane_gb_s and self.width else ""


class GpuFound(NamedTuple):
    """One GPU."""

    name: str
    slot: str
    """As the kernel names it: "0000:3b:00.0"."""
    now: Link
    most: Link
    answers: bool
    """Whether its driver knows it."""


def find_gpus(machine: Machine) -> list[GpuFound]:
    """Return the NVIDIA GPUs: those that nvidia-smi lists, or else those on the bus.

    Images without nvidia-smi, or where it is not in PATH, can still use a GPU that the driver knows.
    """
    output = machine.output_of(QUERY)
    rows = [[field.strip() for field in line.split(",")] for line in (output or "").splitlines()]
    found = [_listed(row) for row in rows if len(row) == len(_FIELDS.split(","))]
    return found or list(_on_bus(machine))


def _listed(row: Sequence[str]) -> GpuFound:
    name, slot, mib, generation, generation_max, width, width_max = row
    size = f" ({int(mib) / 1024:.0f} GiB)" if mib.isdecimal() else ""
    domain, _, rest = slot.lower().partition(":")  # the driver writes domains with eight digits, the kernel with four
    now, most = Link(_number(generation), _number(width)), Link(_number(generation_max), _number(width_max))
    return GpuFound(f"{name}{size}", f"{domain[-4:]}:{rest}", now, most, answers=True)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _on_bus(machine: Machine) -> Iterator[GpuFound]:
    devices = machine.root / "sys/bus/pci/devices"
    for path in sorted(devices.iterdir()) if devices.is_dir() else ():
        at = f"sys/bus/pci/devices/{path.name}"
        is_gpu = (machine.read(f"{at}/class") or "").startswith(_DISPLAY)
        if is_gpu and machine.read(f"{at}/vendor") == _NVIDIA:
            now, most = (_link(machine, at, which) for which in ("current", "max"))
            model = _model_by_driver(machine, path.name)
            yield GpuFound(model or "NVIDIA GPU", path.name, now, most, answers=model is not None)


def _model_by_driver(machine: Machine, slot: str) -> str | None:
    """Return what the driver calls a GPU. None: it does not know it, or this container was given none."""
    said = re.search(r"^Model:\s*(.+)", machine.read(f"proc/driver/nvidia/gpus/{slot}/information") or "", re.MULTILINE)
    return said[1].strip() if said and (machine.root / "dev/nvidiactl").exists() else None


def _link(machine: Machine, at: str, which: str) -> Link:
    speed = re.match(r"[\d.]+", machine.read(f"{at}/{which}_link_speed") or "")
    return Link(
        _GENERATIONS.get(float(speed[0])) if speed else None, _number(machine.read(f"{at}/{which}_link_width") or "")
    )


def check_gpus(gpus: Sequence[GpuFound], *, on_cpu: bool = False) -> Finding:
    """Say which GPUs there are. `on_cpu`: this vLLM is the build for CPUs."""
    found = ", ".join(f"{count} x {name}" for name, count in Counter(gpu.name for gpu in gpus).items())
    if on_cpu:
        return ok(f"{found or 'no NVIDIA GPU'}; this vLLM is the CPU build, and needs none")
    if not gpus:
        return warning(
            "no NVIDIA GPU",
            "nothing, if vLLM's CPU build is what you want; otherwise run it on a machine with a GPU, and if this is a "
            "container, hand the GPU in (docker run --gpus all)",
        )
    if not all(gpu.answers for gpu in gpus):
        return bad(
            f"{found} on the bus, and neither nvidia-smi nor the driver answers for it",
            "install or reload NVIDIA's driver until nvidia-smi lists the GPU; in a container, hand the GPU in "
            "(docker run --gpus all)",
        )
    return ok(found)


def check_links(gpus: Sequence[GpuFound]) -> Finding:
    """Say how fast the links to the GPUs are, and how fast they could be: that is how fast blocks come back."""
    if not gpus:
        return ok("no GPU, no link")
    found = "; ".join(dict.fromkeys(_described(gpu) for gpu in gpus))
    narrow = [gpu.slot for gpu in gpus if gpu.now.width and gpu.most.width and gpu.now.width < gpu.most.width]
    if narrow:
        return warning(
            f"{found}: fewer lanes than it has at {', '.join(narrow)}",
            "put the card into a slot with all lanes, seat it again, or look for lanes that the firmware gave away; "
            "blocks come back more slowly until then",
        )
    if any(gpu.most.width is None for gpu in gpus):
        return ok(f"{found}: this machine does not say how wide the link is, as is usual in virtual ones")
    return ok(found)


def _described(gpu: GpuFound) -> str:
    if gpu.now == gpu.most:
        return str(gpu.now)
    rests = gpu.now.width == gpu.most.width and (gpu.now.generation or 0) < (gpu.most.generation or 0)
    return f"{gpu.now} now, at most {gpu.most}" + (", to which it rises under load" if rests else "")

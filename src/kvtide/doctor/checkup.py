"""All checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kvtide.doctor import mooncake
from kvtide.doctor.asked import Asked
from kvtide.doctor.base import Check, Finding
from kvtide.doctor.clocks import check_clock
from kvtide.doctor.disks import Place, check_direct_io, check_space, check_speed
from kvtide.doctor.gpus import GpuFound, check_gpus, check_links, find_gpus
from kvtide.doctor.hash_seed import check_hash_seed
from kvtide.doctor.machine import COMMAND_TIMEOUT_S, Machine
from kvtide.doctor.memory import check_huge_pages, check_memory, check_pinning
from kvtide.doctor.nodes import check_numa
from kvtide.doctor.pool_node import check_pool_node
from kvtide.doctor.software import check_plugin, check_python, check_vllm, find_vllm
from kvtide.doctor.valkey import check_valkey, check_valkey_clock
from kvtide.doctor.wanted import Wanted, check_config, read_wanted
from kvtide.tiers import TierConfig

if TYPE_CHECKING:
    from kvtide.tiers.disk.options import DiskConfig
    from kvtide.tiers.mooncake.options import MooncakeConfig
    from kvtide.tiers.valkey.options import ValkeyConfig


def all_checks(machine: Machine, asked: Asked) -> Iterator[Check]:
    """Yield the checks of a machine that is to do what is asked for. Nothing is looked at before a check is run.

    Which tiers there are is known once the check of the configuration has been run: ask for the next one after that.
    """
    wanted = Wanted(given=asked.given)

    @cache
    def gpus() -> list[GpuFound]:
        return find_gpus(machine)

    def config() -> Finding:
        nonlocal wanted
        wanted = read_wanted(asked)
        return check_config(wanted)

    yield Check("python", check_python)
    yield Check("vllm", lambda: check_vllm(machine))
    yield Check("plugin", lambda: check_plugin(machine, asked.named_module))
    yield Check("config", config)
    yield Check(
        "hash_seed", lambda: check_hash_seed(machine, bool(asked.extra.get("tiers") or asked.extra.get("node")))
    )
    yield Check("gpu", lambda: check_gpus(gpus(), on_cpu=_is_on_cpu(machine)), deadline_s=COMMAND_TIMEOUT_S + 5.0)
    yield Check("link", lambda: check_links(gpus()))
    yield Check("memory", lambda: check_memory(machine, wanted))
    yield Check("pinning", lambda: check_pinning(machine, wanted))
    yield Check("huge_pages", lambda: check_huge_pages(machine))
    yield Check("numa", lambda: check_numa(machine, gpus()))
    yield Check("clock", lambda: check_clock(machine))
    if isinstance(node := asked.extra.get("node"), str):
        yield Check("node", partial(check_pool_node, Path(node)))
    for tier in wanted.tiers:
        yield from _of_tier(tier)
    if not any(tier.type == "disk" for tier in wanted.tiers):
        yield from _of_disk(Place(Path.cwd()), "the working folder")


def _is_on_cpu(machine: Machine) -> bool:
    vllm = find_vllm(machine)
    return vllm is not None and vllm.on_cpu


def _of_tier(tier: TierConfig) -> Iterator[Check]:
    if tier.type == "disk":
        disk = cast("DiskConfig", tier)
        yield from _of_disk(Place(disk.path, disk.size, disk.io), tier.option)
    elif tier.type == "valkey":
        valkey = cast("ValkeyConfig", tier)
        yield Check("valkey", partial(check_valkey, valkey), tier.option)
        yield Check("valkey_clock", partial(check_valkey_clock, valkey), tier.option)
    elif tier.type == "mooncake":
        run = partial(mooncake.check_mooncake, cast("MooncakeConfig", tier))
        yield Check("mooncake", run, tier.option, deadline_s=mooncake.TIMEOUT_S + 5.0)


def _of_disk(place: Place, about: str) -> Iterator[Check]:
    for name, check in (("disk_space", check_space), ("disk_direct_io", check_direct_io), ("disk_speed", check_speed)):
        yield Check(name, partial(check, place), about)

"""Mooncake's client: imported when it is used, and kept from holding up the whole process.

Seen of mooncake-transfer-engine-non-cuda 0.3.13.post1: all calls let other Python threads run, except `setup` and
`close`, which hold the interpreter's lock for as long as they take: 90 s to find out that there is no master, forever
if it is stopped, 17 s to take leave of a master that died. So another process tries first whether `setup` works, and
nobody takes leave of the dead.
"""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from typing import Any

from kvtide.errors import ConfigError
from kvtide.packages import install
from kvtide.tiers.backend import BackendDown
from kvtide.tiers.mooncake.options import MooncakeConfig

NOT_FOUND, NO_ROOM, EXISTS = -704, -200, -705
_DOWN = (-900, -901, -1010, -1011)
"""The master does not answer, not in time, or not as a master."""
_TRIAL_TIMEOUT_S = 10.0
_TRIAL = """
import os, sys
from mooncake.store import MooncakeDistributedStore
status = MooncakeDistributedStore().setup(sys.argv[1], sys.argv[2], 0, 0, sys.argv[3], sys.argv[4], sys.argv[5])
os._exit(1 if status else 0)
"""
LIBRARIES = "libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libnuma1 libcurl4"
"""Debian's names of what the client needs, even over TCP."""

_abandoned: list[Any] = []
"""Clients whose master died: their destructors would take leave, too."""


def load(deadline_ms: int) -> Any:
    """Import the client, with its own time-outs set: it reads them from the environment, once."""
    silence_s = str(max(1, math.ceil(deadline_ms / 1000)))
    for name, value in {
        "MC_RPC_TIMEOUT_MS": str(deadline_ms),
        "MC_RPC_CONNECT_TIMEOUT_MS": str(deadline_ms),
        "MC_TCP_PROGRESS_TIMEOUT_SEC": silence_s,
        "MC_STORE_CLIENT_SETUP_RETRIES": "1",
        "MC_LOG_LEVEL": "ERROR",
    }.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("mooncake.store")  # it is optional, and large
    except ImportError as error:
        fix = f"{install('mooncake')}, and on Debian: apt install {LIBRARIES}"
        raise ConfigError("type", "mooncake", f"Mooncake's client: {fix} ({error})") from error


def connect(config: MooncakeConfig) -> Any:
    """Return a client of the store, or raise `BackendDown`."""
    module = load(config.deadline_ms)
    address = config.address
    where = (config.hostname, address.metadata)
    who = (config.protocol, config.devices, address.master)
    _try_elsewhere([*where, *who])
    store = module.MooncakeDistributedStore()
    if status := store.setup(*where, config.segment, 0, *who):
        raise BackendDown(f"setup failed with status {status}")
    return store


def disconnect(store: Any, *, is_up: bool) -> None:
    """Take leave of a master that is there."""
    if is_up:
        store.close()
    else:
        _abandoned.append(store)


def check(status: int) -> int:
    """Return a status, unless it says that the store as a whole cannot be used."""
    if status in _DOWN:
        raise BackendDown(f"the master does not answer (status {status})")
    return status


def _try_elsewhere(arguments: list[str]) -> None:
    try:
        trial = subprocess.run(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-c", _TRIAL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackendDown(f"no answer from the master in {_TRIAL_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise BackendDown(f"cannot start a process to try it: {error}") from None
    if trial.returncode:
        raise BackendDown("the master or its metadata server cannot be reached")

"""An arena is of the process that made it: a fork costs no memory, and a child cannot mistake anything for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"
MIB = 1 << 20
BEGIN = """
import gc, json, mmap, os, resource
from kvtide.copy import HostArena
from kvtide.errors import CopyError

SIZE = 64 << 20
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

def rss():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:"))

arena = HostArena(64, 1 << 20)
view = arena.memory
view[:] = 1
before = rss()
say, tell = os.pipe()
child = os.fork()
"""
END = """
    os._exit(0)
os.close(tell)
with os.fdopen(say) as file:
    told = file.read()
view[:] = 2  # stores go on in the parent
_, status = os.waitpid(child, 0)
print(json.dumps({"status": status, "told": told, "before": before, "sum": int(view.sum())}))
"""


def fork(in_child: str) -> dict[str, Any]:
    """Run a program that makes an arena and forks; `in_child` may tell something to `tell`."""
    child = "if child == 0:\n" + "".join(f"    {line}\n" for line in in_child.splitlines())
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", BEGIN + child + END]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=60)  # noqa: S603
    shown: dict[str, Any] = json.loads(ran.stdout)
    assert shown["sum"] == 2 * 64 * MIB, "the parent has all of its arena"
    return shown


def test_a_child_shares_no_page_that_would_be_there_twice_after_the_next_store() -> None:
    shown = fork("os.write(tell, str(rss()).encode())")
    assert shown["status"] == 0
    assert int(shown["told"]) < shown["before"] - 60 * MIB


def test_the_arena_is_closed_in_a_child() -> None:
    shown = fork("try:\n    arena.memory\nexcept CopyError as error:\n    os.write(tell, str(error).encode())")
    assert shown["told"] == "the host arena is closed"


def test_a_child_that_reads_an_old_view_is_stopped() -> None:
    shown = fork("view[3, 3]")
    assert os.WTERMSIG(shown["status"]) == signal.SIGSEGV


def test_a_child_that_drops_the_arena_unmaps_nothing_of_its_own() -> None:
    shown = fork(
        "others = [mmap.mmap(-1, SIZE) for _ in range(4)]\n"
        "arena.close()\n"
        "del arena, view\n"
        "gc.collect()\n"
        "for other in others:\n"
        "    other[:3] = b'abc'\n"
        "os.write(tell, b'alive')"
    )
    assert (shown["status"], shown["told"]) == (0, "alive")


def test_a_child_may_make_an_arena_and_fork_again() -> None:
    shown = fork(
        "with HostArena(4, 4096) as own:\n"
        "    own.memory[:] = 7\n"
        "    grandchild = os.fork()\n"
        "    if grandchild == 0:\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(grandchild, 0)[1] == 0\n"
        "    os.write(tell, str(own.memory.sum()).encode())"
    )
    assert (shown["status"], shown["told"]) == (0, str(7 * 4 * 4096))


def test_a_child_has_no_part_in_the_lock_of_shared_memory() -> None:
    program = """
import os, signal
from kvtide.copy import shared_memory
from kvtide.copy.shared_arena import SharedArena, front_bytes
offer = shared_memory.make(front_bytes(300, 2048) + 300 * 1552)
host = SharedArena(300, 1552, row_bytes=2048, file=offer.descriptor)
with host._lock:
    if os.fork() == 0:
        print(host._lock._file, flush=True)
        os.close(offer.descriptor)
        signal.pause()
    signal.pause()
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", program]
    how: dict[str, Any] = {"text": True, "env": environment, "start_new_session": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **how) as parent:  # noqa: S603 (ours)
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "-1\n"
            (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            parent.send_signal(signal.SIGKILL)
            parent.wait(20)
            links = [os.readlink(link) for link in Path(f"/proc/{child}/fd").iterdir()]
            assert not [link for link in links if "memfd" in link]
        finally:
            os.killpg(parent.pid, signal.SIGKILL)

"""Lives of engines at a real server, with real processes that are killed."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from kvtide.node import processes
from kvtide.node.errors import Gone, Refused
from tests.node.support import ECHO, SOON_S, Rig, python, serving, wait_to_read, wait_until

CLIENT = """
import os, sys
from pathlib import Path
from kvtide.node.client import Client
from kvtide.node.hello import Hello, Role
path, role, owner, with_child = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"
client = Client(path, Hello(Role(role), engine="killed", namespace={"parts": [1000]}, epoch="this-epoch", owner=owner))
welcome = client.wait(20)
kept = os.dup(client.fileno())
child = os.fork() if with_child else -1
if child:
    os.close(kept)
    print(welcome.owner, child, flush=True)
sys.stdin.read()
"""


class ClientProcess:
    """A scheduler or worker in a process of its own, perhaps with a child that has its connection, too."""

    def __init__(self, rig: Rig, role: str, owner: int = 0, *, with_child: bool = False) -> None:
        self.process: subprocess.Popen[str] = python(CLIENT, rig.path, role, owner, with_child)
        assert self.process.stdout is not None
        self.owner, self.child = map(int, self.process.stdout.readline().split())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def states(rig: Rig) -> dict[str, str]:
    found: dict[str, str] = rig.call(lambda: {owner.engine: owner.state.value for owner in rig.server.lives.owners})
    return found


def test_a_scheduler_that_is_killed_is_over_by_itself(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = ClientProcess(rig, "scheduler")
        assert states(rig) == {"killed": "open"}
        scheduler.kill()
        wait_until(lambda: states(rig) == {})
        assert rig.handler.told == [("ending", "killed"), ("over", "killed")]
        assert rig.lines == []
        rig.check_alive()


def test_a_worker_that_is_killed_ends_the_life_of_its_scheduler_which_need_not_die(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler("killed")
        assert scheduler.welcome is not None
        worker = ClientProcess(rig, "worker", scheduler.welcome.owner)
        worker.kill()
        wait_to_read(scheduler)
        with pytest.raises(Gone, match="closed"):
            scheduler.poll()
        wait_until(lambda: states(rig) == {})
        assert rig.handler.told == [("ending", "killed"), ("over", "killed")]
        scheduler.close()


def test_a_worker_that_lives_on_without_its_scheduler_keeps_its_life_from_being_over(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = ClientProcess(rig, "scheduler")
        worker = ClientProcess(rig, "worker", scheduler.owner)
        scheduler.kill()
        wait_until(lambda: states(rig) == {"killed": "ending"})
        again = rig.scheduler("killed")  # the next life of the same engine does not wait for that
        assert again.ask(ECHO, timeout_s=SOON_S) is not None
        assert rig.handler.told == [("ending", "killed")]
        worker.kill()
        wait_until(lambda: states(rig) == {"killed": "open"})
        assert rig.handler.told == [("ending", "killed"), ("over", "killed")]
        again.close()


def test_a_child_that_holds_the_connection_does_not_keep_a_dead_engine_alive(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = ClientProcess(rig, "scheduler", with_child=True)
        os.kill(scheduler.process.pid, signal.SIGKILL)
        scheduler.process.wait()
        wait_until(lambda: states(rig) == {})
        os.kill(scheduler.child, signal.SIGKILL)
        scheduler.process.communicate()


FORKED = """
import os, sys
from pathlib import Path
from kvtide.node.client import Client
from kvtide.node.errors import NodeError
from kvtide.node.hello import Hello, Role
scheduler = Client(Path(sys.argv[1]), Hello(Role.SCHEDULER, engine="forked", namespace={"parts": [1000]}))
welcome = scheduler.wait(20)
worker = Client(Path(sys.argv[1]), Hello(Role.WORKER, epoch=welcome.epoch, owner=welcome.owner))
worker.wait(20)
lives, parent = os.pipe()
if os.fork() == 0:
    os.close(parent)
    try:
        worker.drained()
        print("the child was heard", flush=True)
    except NodeError:
        print("the child is not heard", flush=True)
    os.read(lives, 1)
    os._exit(0)
sys.stdin.readline()
scheduler.close()
sys.stdin.read()
"""


def test_f28_what_a_forked_child_has_and_says_is_not_its_parents(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        process = python(FORKED, rig.path)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "the child is not heard\n"
        assert states(rig) == {"forked": "open"}
        process.stdin.write("let go\n")
        process.stdin.flush()
        wait_until(lambda: states(rig) == {"forked": "ending"})
        process.communicate()
        wait_until(lambda: states(rig) == {})


def test_a_worker_whose_scheduler_is_gone_can_say_that_it_copies_no_more(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler()
        worker = rig.worker(scheduler)
        scheduler.close()
        wait_until(lambda: states(rig) == {"engine": "ending"})
        assert rig.handler.told == [("ending", "engine")]
        worker.drained()
        wait_until(lambda: rig.handler.told == [("ending", "engine"), ("over", "engine")])
        worker.close()


def test_a_worker_that_has_said_so_can_go_and_come_again(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler()
        for _ in range(3):
            worker = rig.worker(scheduler, rank=1)
            worker.drained()
            worker.close()
            wait_until(lambda: rig.call(lambda: rig.server.connections) == 1)
        assert scheduler.ask(ECHO, timeout_s=SOON_S) is not None
        assert rig.handler.told == []
        assert rig.call(lambda: len(rig.server.lives._processes)) == 1
        scheduler.close()
        wait_until(lambda: rig.handler.told == [("ending", "engine"), ("over", "engine")])


def test_on_older_kernels_processes_are_found_by_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_SO_PEERPIDFD", 9999)
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler("killed")
        assert scheduler.welcome is not None
        worker = ClientProcess(rig, "worker", scheduler.welcome.owner)
        os.kill(worker.process.pid, signal.SIGSTOP)
        (owner,) = rig.call(lambda: list(rig.server.lives.owners))
        assert all(member.is_watched for member in owner.members.values())
        scheduler.close()
        wait_until(lambda: states(rig) == {"killed": "ending"})
        worker.kill()
        wait_until(lambda: states(rig) == {})


def test_a_process_that_cannot_be_seen_gets_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtide.node.lives.process_of", lambda *_: None)
    with serving(tmp_path, grace_s=0.1) as rig:
        scheduler = rig.scheduler()
        worker = rig.worker(scheduler)
        worker.close()
        scheduler.close()
        wait_until(lambda: rig.handler.told == [("ending", "engine"), ("over", "engine")])


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_f28_nobody_is_taken_who_cannot_be_watched_for_lack_of_descriptors(
    monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    if kernel == "old":
        monkeypatch.setattr(processes, "_SO_PEERPIDFD", 9999)
    ours, theirs = socket.socketpair()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ours, theirs:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(Refused, match="cannot watch this process") as refused:
                processes.process_of(ours, os.getpid())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not refused.value.for_good
        found = processes.process_of(ours, os.getpid())
        assert found is not None
        os.close(found)


def test_a_process_that_has_gone_is_not_mistaken_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_SO_PEERPIDFD", 9999)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert processes.process_of(ours, os.getpid()) is None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert processes.process_of(ours, 0) is None
        found = processes.process_of(ours, os.getpid())
        assert found is not None
        os.close(found)


def test_a_hundred_lives_leave_nothing_behind(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        for _ in range(100):
            scheduler = rig.scheduler("short")
            worker = rig.worker(scheduler)
            worker.drained()
            worker.close()
            scheduler.close()
        wait_until(lambda: rig.handler.told.count(("over", "short")) == 100)
        assert states(rig) == {}
        assert rig.call(lambda: len(rig.server.lives._processes)) == 0


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from kvtide.node.client import Client
from kvtide.node.errors import NodeError
from kvtide.node.hello import Hello, Role

def engine(path):
    os.setpgid(0, 0)
    scheduler = Client(path, Hello(Role.SCHEDULER, engine="killed", namespace={"parts": [1000]}))
    welcome = scheduler.wait(20)
    for rank in range(2):
        if os.fork() == 0:
            worker = Client(path, Hello(Role.WORKER, rank=rank, epoch=welcome.epoch, owner=welcome.owner))
            worker.wait(20)
            time.sleep(20)
    for _ in range(10_000):
        scheduler.ask(32, bytes(100_000), timeout_s=20)

def kill(kill, process):
    try:
        kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass

path, count, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(7)
for number in range(count):
    child = os.fork()
    if child == 0:
        try:
            engine(path)
        except NodeError:
            time.sleep(20)
        finally:
            os._exit(0)
    time.sleep(draw.uniform(0.0, 0.05))
    if number % 2:
        kill(os.kill, child)  # its workers live a little longer
        time.sleep(draw.uniform(0.0, 0.01))
    kill(os.killpg, child)
    kill(os.kill, child)
    os.waitpid(child, 0)
print("done", flush=True)
"""


def test_engines_that_are_killed_at_any_moment_leave_nothing_behind(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        killer = python(KILLED, rig.path, 40)
        out, _ = killer.communicate(timeout=120)
        assert out == "done\n"
        wait_until(lambda: states(rig) == {} and rig.call(lambda: rig.server.connections) == 0)
        assert rig.call(lambda: len(rig.server.lives._processes)) == 0
        assert rig.handler.told.count(("ending", "killed")) == rig.handler.told.count(("over", "killed")) > 0
        rig.check_alive()

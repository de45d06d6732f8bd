"""Being told to end, at whatever moment."""

from __future__ import annotations

import subprocess
import sys

TOLD_WHILE_FREEING = """
import os, signal, time
from kvtide.signals import leaving_cleanly

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass  # Python looks for signals here, and ignores what is raised

with leaving_cleanly():
    one = Freed()
    del one
    time.sleep(60)
"""


def test_who_is_told_while_python_frees_something_ends_all_the_same() -> None:
    ran = subprocess.run([sys.executable, "-c", TOLD_WHILE_FREEING], capture_output=True, timeout=50, check=False)  # noqa: S603 (our own)
    assert (ran.returncode, ran.stdout, ran.stderr) == (143, b"", b"")

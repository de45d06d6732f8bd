from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator

import pytest

collect_ignore_glob: list[str] = []

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    collect_ignore_glob.append("test_*.py")
else:
    import importlib

    if not importlib.import_module("torch").cuda.is_available():
        collect_ignore_glob.append("test_*.py")

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob += ["test_states.py", "test_kinds.py"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """A test that leaves an engine behind is named itself, and not the next one that looks."""
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("kvtide")] == []

from __future__ import annotations

import importlib.util

collect_ignore_glob: list[str] = []

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    collect_ignore_glob.append("test_*.py")
else:
    import importlib

    if not importlib.import_module("torch").cuda.is_available():
        collect_ignore_glob.append("test_*.py")

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob.append("test_states.py")

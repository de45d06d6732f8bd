"""Settings for all tests."""

from __future__ import annotations

import importlib.util
import os

# Before numpy is imported: threads of BLAS that spin on a busy machine make the engine's tests 10 times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = ["tests.not_tested", "tests.browser"]

if importlib.util.find_spec("hypothesis") is not None:  # tests/gpu runs without
    from hypothesis import settings

    # The same examples each time and no deadlines: a test fails only for what was changed. `make soak` tries others.
    settings.register_profile("fixed", derandomize=True, deadline=None)
    settings.register_profile("fresh", print_blob=True, deadline=None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

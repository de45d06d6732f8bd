"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# Before numpy is imported: threads of BLAS that spin on a busy machine make the engine's tests 10 times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = ["tests.not_tested"]

# The same examples each time, so that a test fails only for what was changed; `make soak` tries fresh ones.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("fresh", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

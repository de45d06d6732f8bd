"""Settings for all tests."""

from __future__ import annotations

import os

# Before numpy is imported: threads of BLAS that spin on a busy machine make the engine's tests 10 times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

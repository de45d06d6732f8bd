"""`kvtide demo`: conversations whose KV overflows the device pool, with and without offloading.

`settings` says what is run, `workload` what is said, `compare` runs it in every mode, `report` shows what came out.
"""

from __future__ import annotations

from kvtide.demo.compare import Comparison, RunResult, compare_modes
from kvtide.demo.settings import DemoSettings

__all__ = ["Comparison", "DemoSettings", "RunResult", "compare_modes"]

"""Synthetic workloads, one file per kind of traffic. `WORKLOADS` names them."""

from __future__ import annotations

from kvtide.traces.workloads.table import WORKLOADS
from kvtide.traces.workloads.workload import Workload

__all__ = ["WORKLOADS", "Workload"]

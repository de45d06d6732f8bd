"""The demo with packing: a host pool that is too small, with blocks as they are and packed."""

from __future__ import annotations

from kvtide.demo.compare import REFERENCE, Comparison, OnTurn, served
from kvtide.demo.settings import DemoSettings
from kvtide.demo.workload import conversations
from kvtide.engine import Engine

RUNS = (REFERENCE, "none", "plain", "packed")


def compare_packed(settings: DemoSettings, on_turn: OnTurn) -> Comparison:
    """Run the workload with the same host memory, without packing and with it."""
    said = conversations(settings)
    small = settings.engine(settings.device_blocks)
    offload = settings.offload("eager")
    runs = {
        REFERENCE: (settings.engine(settings.unlimited_blocks), None),
        "none": (small, None),
        "plain": (small, offload),
        "packed": (small, {**offload, "packing": "on"}),
    }
    results = {}
    for run, (config, options) in runs.items():
        with Engine(config, options) as engine:
            results[run] = served(engine, settings, run, said, on_turn)
    return Comparison(settings, results)

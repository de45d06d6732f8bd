"""What `kvtide plan --measure` finds on a machine with a GPU."""

from __future__ import annotations

from kvtide.traces.gpus import GPUS
from kvtide.traces.measured import measure_machine, measured_rates
from kvtide.traces.model import DEFAULT_MODEL
from kvtide.traces.rates import PRESETS, derive_rates


def test_the_link_and_the_speed_of_the_gpu_are_measured() -> None:
    measured = measure_machine()
    assert measured.gpu is not None
    rates = measured_rates(derive_rates(GPUS["h200"], DEFAULT_MODEL), measured, DEFAULT_MODEL)
    assert rates.load_bytes_per_s.source == rates.store_bytes_per_s.source == "measured"
    assert rates.load_bytes_per_s.value > 1e9
    assert 100 < rates.prefill_tokens_per_s.value < 10 * PRESETS["h200"].prefill_tokens_per_s

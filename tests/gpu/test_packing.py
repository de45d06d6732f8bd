"""The packing kernels on a GPU: all memory is as the reference says."""

from __future__ import annotations

from tests.copy.cuda.interpret_packing import sweep


def test_the_packing_kernels_do_what_the_reference_does() -> None:
    sweep("cuda", units=8)

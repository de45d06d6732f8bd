"""Compiles the packing kernels for a Hopper GPU, which needs none, and looks how they reach memory."""

from __future__ import annotations

import importlib
import re
from typing import Any

from kvtide.copy.packing.format import ESCAPES_MAX

_TYPES = {"anchor": "*i32", "byte_anchor": "*i8", "unpacked": "*i32", "table": "*i64", "index": "*i64"}
_TYPES |= dict.fromkeys(("first", "pairs", "tiles"), "i32") | dict.fromkeys(("rows_at", "row_stride"), "i64")


def wide_accesses(name: str) -> tuple[int, int]:
    """Return how many loads and stores of 16 bytes a kernel has for each of its steps, with a tile for each warp."""
    compiler: Any = importlib.import_module("triton.compiler")
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    kernel = getattr(importlib.import_module("kvtide.copy.cuda.packing_kernels"), name)
    signature = {argument: _TYPES.get(argument, "constexpr") for argument in kernel.arg_names}
    pointers = [at for at, argument in enumerate(kernel.arg_names) if signature[argument].startswith("*")]
    attributes = {(at,): [["tt.divisibility", 16]] for at in pointers}
    constants = {"SCATTERED": False, "ESCAPES_MAX": ESCAPES_MAX, "UNITS": 4}
    source = compiler.ASTSource(kernel, signature, constants, attributes)
    ptx: str = compiler.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]
    return len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)), len(re.findall(r"st\.global\S*\.v4\.b32", ptx))


if __name__ == "__main__":
    assert wide_accesses("pack_blocks") == (4, 3)
    assert wide_accesses("unpack_blocks") == (3, 4)

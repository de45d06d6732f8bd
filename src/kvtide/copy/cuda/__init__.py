"""Copies between NVIDIA GPUs and host memory at the speed of the link, whatever the size of the fragments.

Nothing here imports torch or Triton before an engine is made.
"""

from __future__ import annotations

from kvtide.copy.cuda.engine import CudaCopyEngine
from kvtide.copy.cuda.geometry import CudaCache, CudaRegion, tensor_regions
from kvtide.copy.cuda.kit import CopyKit
from kvtide.copy.cuda.measure import Rates, Route
from kvtide.copy.cuda.torch_gpu import TorchGpu

__all__ = ["CopyKit", "CudaCache", "CudaCopyEngine", "CudaRegion", "Rates", "Route", "TorchGpu", "tensor_regions"]

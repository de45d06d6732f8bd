"""What a thread of somebody else's has to be given before it can use a GPU. Torch is not needed for that."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvtide.copy.cuda.driver import Driver
from kvtide.copy.cuda.torch_gpu import TorchGpu
from tests.copy.cuda.test_issuing import Library

GLOBAL, RELAXED = 0, 2
CONTEXT = 4711


class Thread(Library):
    """What the driver knows of a thread: its contexts, the current one last, and what it may do during a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts: list[int] = []
        self.mode = GLOBAL
        self.device = 0

    def cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> int:  # noqa: N802 - the driver's name
        self.contexts.append(context.value or 0)
        return 0

    def cuCtxPopCurrent_v2(self, _: Any) -> int:  # noqa: N802
        self.contexts.pop()
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    @contextlib.contextmanager
    def use_device(self, device: int) -> Iterator[None]:
        """Torch's: it does nothing for the device that a new thread has anyway, the first one."""
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before


@pytest.mark.parametrize("fails", [False, True])
def test_while_a_gpu_is_active_a_thread_has_its_context_and_breaks_no_capture(fails: bool) -> None:
    thread = Thread()
    gpu = TorchGpu.__new__(TorchGpu)
    torch: Any = SimpleNamespace(cuda=SimpleNamespace(device=thread.use_device))
    gpu._torch, gpu._device = torch, 3
    gpu._driver, gpu._context = Driver(in_c=False, library=thread), CONTEXT
    with contextlib.suppress(ZeroDivisionError), gpu.active():
        assert (thread.contexts, thread.mode, thread.device) == ([CONTEXT], RELAXED, 3)
        assert 1 // (not fails)
    assert (thread.contexts, thread.mode, thread.device) == ([], GLOBAL, 0)


def test_memory_that_compute_has_just_given_back_is_not_used_before_its_kernels_have_run() -> None:
    """Torch hands it out again on the same stream, and we use it on others."""
    called: list[object] = []

    def empty(nbytes: int, **_: object) -> Any:
        called.append(nbytes)
        return SimpleNamespace(view=lambda _: None, data_ptr=lambda: 4096)

    def current_stream(device: object) -> Any:
        return SimpleNamespace(synchronize=lambda: called.append(f"the stream of {device} has run"))

    torch: Any = SimpleNamespace(
        cuda=SimpleNamespace(current_stream=current_stream), empty=empty, uint8=None, int64=None
    )
    gpu = TorchGpu.__new__(TorchGpu)
    gpu._torch, gpu._device = torch, "cuda:3"
    assert gpu.allocate(64).address == 4096
    assert called == [64, "the stream of cuda:3 has run"]

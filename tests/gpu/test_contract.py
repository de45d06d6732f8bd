from __future__ import annotations

import pytest

from kvtide.copy.cuda import Route
from tests.contracts.copy_contract import MovingContract, Rig, Shape
from tests.gpu.rig import CudaRig


class CudaContract(MovingContract):
    route: Route | None = None
    staging_bytes = 1 << 20

    def build(self, shape: Shape, *, max_transfers: int) -> CudaRig:
        return CudaRig(shape, max_transfers=max_transfers, route=self.route, staging_bytes=self.staging_bytes)

    def release(self, rig: Rig) -> None:
        assert isinstance(rig, CudaRig)
        rig.arena.close()


class TestStaged(CudaContract):
    route = Route.STAGED


class TestStagedInSmallBuffers(CudaContract):
    route = Route.STAGED
    staging_bytes = 1


class TestDirect(CudaContract):
    route = Route.DIRECT


@pytest.mark.parametrize("fragment", [2048, 1 << 20])
def test_a_short_measurement_at_start_chooses_the_route(fragment: int) -> None:
    rig = CudaRig(Shape(blocks=4, slots=4, fragments=(fragment, fragment)))
    assert rig.engine.rates.store > 1
    assert rig.engine.rates.load > 1
    if fragment == 2048:
        assert rig.engine.route is Route.STAGED
    rig.release()

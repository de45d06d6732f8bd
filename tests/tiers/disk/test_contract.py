"""The disk tier keeps the contract, however files are read and written, and encrypted too."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from kvtide.tiers import QueuedTier, Tier
from kvtide.tiers.disk.file_io import IoMode, probe
from tests.contracts.tier_contract import KeepingContract
from tests.tiers.support import disk_store


class DiskContract(KeepingContract):
    io = "auto"
    options: dict[str, str] = {}  # noqa: RUF012 - not changed by anyone

    def build(self, *, calls_max: int | None = None) -> Tier:
        self.folder = Path(tempfile.mkdtemp())
        try:
            store = disk_store(self.folder, 16 << 20, slot_bytes=200_000, **{"io": self.io, **self.options})  # type: ignore[arg-type]
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        return QueuedTier(store, threads=3, calls_max=calls_max or 1024, part_bytes=64 << 10)

    def release(self, tier: Tier) -> None:
        shutil.rmtree(self.folder)


@pytest.mark.skipif(
    probe(Path(tempfile.gettempdir())) is not IoMode.DIRECT, reason="direct I/O: Set TMPDIR to a folder on a disk."
)
class TestDirect(DiskContract):
    io = "direct"


class TestBuffered(DiskContract):
    io = "buffered"


class TestCached(DiskContract):
    io = "cached"


class TestEncrypted(DiskContract):
    @pytest.fixture(autouse=True)
    def _secret(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.touch(mode=0o600)
        secret.write_text("5a" * 32)
        self.options = {"encryption_key_file": str(secret)}

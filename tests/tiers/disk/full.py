"""Fills the disk that a store is on. Run by the tests, on a small file system of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from kvtide.tiers import HIT, Verdict
from tests.tiers.disk.test_backend import items, served
from tests.tiers.support import disk_config, disk_store


def main(folder: Path) -> None:
    """Put, with a disk that has less and less room."""
    size = 3 << 20
    disk_config(folder, size)
    store = disk_store(folder, size)
    assert store.put(items(range(20))) == [HIT] * 20
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    verdicts = {
        result.verdict for first in range(100, 400, 10) for result in store.put(items(range(first, first + 10)))
    }
    assert verdicts <= {Verdict.HIT, Verdict.FAILED, Verdict.THROTTLED}, verdicts
    found = served(store, range(400))
    assert found, "the store goes on with the room it has"
    assert not store.corrupt_records()
    filler.unlink()
    assert {result.verdict for result in store.put(items(range(500, 510)))} == {Verdict.HIT}
    assert served(store, range(500, 510)) == list(range(500, 510))
    store.close()
    store = disk_store(folder, size)
    assert served(store, range(500, 510)) == list(range(500, 510))
    store.close()
    sys.stdout.write("fine\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A process that lends memory to a Mooncake store: `python -m tests.tiers.shared.owner METADATA MASTER BYTES`."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    status = store.setup("127.0.0.1", sys.argv[1], int(sys.argv[3]), 0, "tcp", "", sys.argv[2])
    print("ready" if status == 0 else f"status {status}", flush=True)  # noqa: T201 - what the starter waits for
    sys.stdin.read()


if __name__ == "__main__":
    main()

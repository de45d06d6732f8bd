"""How fast tiers take blocks and give them back, next to the plainest thing that could do it in the same run.

    python benchmarks/tiers.py [--json] [--small] [--tier disk] [--folder PATH]

GB/s are 10^9 bytes per second, medians of rounds in which the tier and the plain thing take turns. For the disk the
plain thing is one sequential file, written and read in blocks of the same size with the same I/O mode. What is got is
verified; the plain thing verifies nothing. Restart is the time from opening a store to its first answer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tiers_common import Restart, Row, Settings

KINDS = ("disk", "valkey", "mooncake")
"""Each in its own file, `tiers_<kind>.py`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--small", action="store_true", help="little data, two rounds: shows that it runs")
    parser.add_argument("--tier", choices=KINDS, action="append", help="measure only this one (may be repeated)")
    parser.add_argument("--folder", help="where the disk is measured (default: the folder for temporary files)")
    args = parser.parse_args()
    rows: list[Row] = []
    restarts: list[Restart] = []
    for kind in args.tier or KINDS:
        try:
            module = importlib.import_module(f"tiers_{kind}")
        except ImportError as error:
            print(f"{kind} is left out: {error}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            settings = small(Path(folder)) if args.small else Settings(Path(folder))
            rows += module.rows(settings)
            if hasattr(module, "restarts"):
                restarts += module.restarts(settings)
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "restarts": [asdict(row) for row in restarts]}))
    else:
        show(rows, restarts)


def small(folder: Path) -> Settings:
    return Settings(folder, (64 << 10, 1 << 20), 4 << 20, 2, 2 << 20, (1,), small=True)


def show(rows: list[Row], restarts: list[Restart]) -> None:
    print(f"{'tier':<14} {'block':>8} {'put GB/s':>9} {'plain':>7} {'get GB/s':>9} {'plain':>7} {'CPU s/GB':>15}")
    for row in rows:
        print(
            f"{row.tier:<14} {row.block_bytes >> 10:>4} KiB {row.put_gbps:>9.2f} {row.put_ratio:>6.0%} "
            f"{row.get_gbps:>9.2f} {row.get_ratio:>6.0%}  put {row.put_cpu_s_per_gb:.2f} get {row.get_cpu_s_per_gb:.2f}"
        )
    for restart in restarts:
        print(
            f"{restart.tier}: {restart.gb} GB in blocks of {restart.block_bytes >> 10} KiB, "
            f"{restart.records:,} records: restart in {restart.seconds:.2f} s"
        )


if __name__ == "__main__":
    main()

"""`python -m kvtide` is the command `kvtide`."""

from __future__ import annotations

import sys

from kvtide.cli import main

if __name__ == "__main__":
    sys.exit(main())

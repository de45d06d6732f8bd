"""Writes the tables of options in docs/users/vllm.md and docs/operators/tiers.md out of the models that check them.

python tools/option_tables.py            # writes them
python tools/option_tables.py --check    # says whether they are as they should be
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from kvtide.schema import OptionsModel, option_rows
from kvtide.tiers.config import TierConfig, kind_of
from kvtide.vllm.options import ConnectorOptions

DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLES: Mapping[str, tuple[str, type[OptionsModel]]] = {
    "connector options": ("users/vllm.md", ConnectorOptions),
    "options of every tier": ("operators/tiers.md", TierConfig),
    **{
        f"options of {name}": ("operators/tiers.md", kind_of("type", name).CONFIG)
        for name in ("disk", "valkey", "mooncake")
    },
}
"""By the words of their markers: the page, and the model."""


def main() -> int:
    """Write all tables, or compare them."""
    check = "--check" in sys.argv[1:]
    different = 0
    for page in sorted({page for page, _ in TABLES.values()}):
        path = DOCS / page
        before = path.read_text(encoding="utf-8")
        after = with_tables(page, before)
        if after != before:
            different += 1
            print(f"docs/{page} {'differs: run tools/option_tables.py' if check else 'was written'}")
            if not check:
                path.write_text(after, encoding="utf-8")
    return int(check and different > 0)


def with_tables(page: str, text: str) -> str:
    """Return a page with its tables as the models have them."""
    for name, (where, model) in TABLES.items():
        if where == page:
            begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
            head, rest = text.split(begin)
            text = head + begin + table(model) + end + rest.split(end)[1]
    return text


def table(model: type[OptionsModel]) -> str:
    """Return the options of a model as a table. What every tier has is in a table of its own."""
    shared = option_rows(TierConfig) if model is not TierConfig and issubclass(model, TierConfig) else []
    rows = [row for row in option_rows(model) if row not in shared]
    lines = [f"| `{name}` | {default} | {meaning} |" for name, default, meaning in rows]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *lines]) + "\n"


if __name__ == "__main__":
    sys.exit(main())

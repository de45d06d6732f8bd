"""The first table and the picture of docs/users/performance.md, out of what `benchmarks/vllm_chat.py --out` has kept.

    python -m tools.chat_report rows.json            # prints the part of the page
    python -m tools.chat_report rows.json --write    # writes the page, the picture, and what the README says of it
    python -m tools.chat_report rows.json --round 2  # of the second round alone

A mode that was measured in several groups has a row, with the lowest and the highest number of these.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.chat_picture import picture, picture_in_words

ROOT = Path(__file__).resolve().parents[1]
PAGE, README, PICTURE = ROOT / "docs/users/performance.md", ROOT / "README.md", ROOT / "docs/measured.svg"
BEGIN, END = "<!-- first table -->\n", "<!-- end of first table -->"
NAMES = {
    "none": "without offloading",
    "kvtide-eager": "kvtide",
    "kvtide-lazy": "kvtide, `lazy`",
    "kvtide-node": "kvtide, at a node",
    "offloading": "vLLM's OffloadingConnector",
    "simple-eager": "vLLM's SimpleCPUOffloadConnector, eager",
    "simple-lazy": "vLLM's SimpleCPUOffloadConnector, lazy",
    "lmcache": "LMCache, in process",
    "lmcache-server": "LMCache, its server",
    "device-cache": "everything fits on the GPU",
}
"""In the order of the table."""
COLUMNS: Mapping[str, tuple[Callable[[Any], float], int]] = {
    "first turn, median ms": (lambda row: row["first_ms"]["p50"], 0),
    "follow-up, median ms": (lambda row: row["follow_up_ms"]["p50"], 0),
    "follow-up, p90 ms": (lambda row: row["follow_up_ms"]["p90"], 0),
    "between tokens, mean ms": (lambda row: row["between_ms"]["mean"], 1),
    "between tokens, p99 ms": (lambda row: row["between_ms"]["p99"], 0),
    "all done, s": (lambda row: row["done_s"], 1),
    "other answers": (lambda row: row["other_answers"], 0),
}
"""What is in a column, and with how many decimals."""

HOW_TO_READ = (
    "A follow-up is a later turn: what was said before is on the device, or loaded, or computed again. *Between tokens*"
    " is the time between two tokens of an answer, waits for other requests included, in later turns. *All done* is"
    " everything, from the first request to the last token. *Other answers* are those that differ from the first row's:"
    " batches of other shapes are rounded otherwise, also where nothing is copied. That makes a few; why LMCache has"
    " many was not looked into."
)


def of_round(measured: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return what was measured in one round, as if it had been the only one. Modes that did not have it are left out.

    Raises ValueError if no row has kept all of it.
    """
    rows = [{**row, **each} for row in measured["rows"] for each in row["rounds"] if each.get("number") == number]
    if not rows:
        raise ValueError(f"no row has kept a round {number} (vllm_chat.py of before kept only a part of each)")
    return {**measured, "rows": rows, "round": number}


def by_mode(measured: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the rows of each mode, in the order of the table. Variants for engineers (`@`) are left out."""
    modes: dict[str, list[Any]] = {}
    for row in measured["rows"]:
        if "@" not in row["mode"]:
            modes.setdefault(row["mode"], []).append(row)
    order = list(NAMES)
    return dict(sorted(modes.items(), key=lambda item: order.index(item[0].split("+")[0].removesuffix(" again"))))


def name_of(mode: str) -> str:
    """Return a mode as people call it, with the options that it was given (`kvtide-eager+host=8GiB`)."""
    name, *options = mode.split("+")
    return ", ".join([NAMES.get(name, name), *(f"`{option}`" for option in options)])


def table(measured: Mapping[str, Any]) -> str:
    """Return a row for each mode; ours is bold."""
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---{'|---' * len(COLUMNS)}|"]
    for mode, rows in by_mode(measured).items():
        cells = [_cell([pick(row) for row in rows], decimals) for pick, decimals in COLUMNS.values()]
        marks = "**" if mode == "kvtide-eager" else ""
        lines.append(f"| {' | '.join(f'{marks}{cell}{marks}' for cell in (name_of(mode), *cells))} |")
    return "\n".join(lines)


def _cell(values: Sequence[float], decimals: int) -> str:
    shown = [f"{value:,.{decimals}f}" for value in (min(values), max(values))]
    return shown[0] if shown[0] == shown[1] else " to ".join(shown)


def caption(measured: Mapping[str, Any]) -> str:
    """Say what was run, and what could not be."""
    settings = measured["settings"]
    lengths, model = settings["lengths"], settings["model"]
    machines = {f"{row['machine']['device']} and vLLM {row['machine']['vllm']}" for row in measured["rows"]}
    if len(machines) > 1:
        raise ValueError(f"rows of several machines: {', '.join(sorted(machines))}")
    tokens = {
        name: said(lengths[f"{name}_tokens"], lengths["scale"]) for name in ("common", "first", "question", "answer")
    }
    answers = sum(measured["rows"][0][name]["count"] for name in ("first_ms", "follow_up_ms"))
    common = f"{tokens['common']} tokens that all have, and " if tokens["common"] != "0" else ""
    return " ".join(
        [
            f"{machines.pop()}, a Llama of {model['layers']} layers and {model['kv_heads']} KV heads, random weights.",
            f"{lengths['conversations']} conversations of {said(lengths['turns'])} turns begin with {common}"
            f"{tokens['first']} tokens of their own; questions have {tokens['question']}, answers {tokens['answer']}.",
            f"At most {settings['at_once']} requests are served at a time.",
            f"The device cache has room for {settings['device_tokens']:,} tokens, and host memory is"
            f" {settings['host_bytes'] / 2**30:,.3g} GiB.",
            f"{_rounds(measured)}, {answers} answers.",
            *(f"{name_of(mode)} could not be run: {_last_line(why)}." for mode, why in measured["failed"].items()),
        ]
    )


def _rounds(measured: Mapping[str, Any]) -> str:
    rounds = measured["settings"]["rounds"]
    return (
        f"Round {measured['round']} of {rounds} of each row"
        if "round" in measured
        else f"Rounds for each row: {rounds}"
    )


def said(what: Mapping[str, Any], scale: float = 1.0) -> str:
    """Say a distribution of the benchmark (`benchmarks/chat_workload.py`)."""
    if "halved" in what:
        return said(what["halved"], scale / 2)
    if what["distribution"] == "uniform":
        return f"{round(scale * what['min']):,} to {round(scale * what['max']):,}"
    if what["distribution"] == "constant":
        return f"{round(scale * what['value']):,}"
    return f"about {round(scale * what['average']):,}" if "average" in what else f"some ({what['distribution']})"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].rstrip(".")


def _middle(rows: Sequence[Any], what: str) -> float:
    return statistics.median([float(row["follow_up_ms"][what]) for row in rows])


def drawn(measured: Mapping[str, Any]) -> str:
    """Return the picture."""
    bars = {
        name_of(mode).replace("`", ""): (_middle(rows, "p50"), _middle(rows, "p90"))
        for mode, rows in by_mode(measured).items()
    }
    machine = measured["rows"][0]["machine"]
    return picture(bars, ours="kvtide", below=f"{machine['device']}, vLLM {machine['vllm']}. Less is better.")


def part(measured: Mapping[str, Any]) -> str:
    """Return what stands between the marks of the page."""
    words = picture_in_words(drawn(measured))
    lines = [f"![{words}](../measured.svg)", caption(measured), table(measured), HOW_TO_READ]
    return "\n\n".join(lines) + "\n"


def with_part(page: str, measured: Mapping[str, Any]) -> str:
    """Return a page with its part written anew."""
    head, rest = page.split(BEGIN)
    return head + BEGIN + "\n" + part(measured) + "\n" + END + rest.split(END)[1]


def main() -> int:
    """Print, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="what `benchmarks/vllm_chat.py --out` has kept")
    parser.add_argument("--round", type=int, help="which round (default: all of them together)")
    parser.add_argument("--write", action="store_true", help="write page, picture and README instead of printing")
    arguments = parser.parse_args()
    measured = json.loads(arguments.file.read_text())
    if arguments.round is not None:
        try:
            measured = of_round(measured, arguments.round)
        except ValueError as error:
            parser.error(f"--round: {error}")
    if not arguments.write:
        print(part(measured))
        return 0
    if measured["settings"]["small"]:
        print("this was the tiny model of --small: its times mean nothing, and are not written")
        return 1
    PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")
    PICTURE.write_text(drawn(measured), encoding="utf-8")
    words = picture_in_words(drawn(measured))
    readme = re.sub(r"!\[[^]]*\]\(docs/measured\.svg\)", f"![{words}](docs/measured.svg)", README.read_text("utf-8"))
    README.write_text(readme, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

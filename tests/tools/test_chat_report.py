"""What the chat benchmark has kept becomes the first table of the docs and their picture. `chat.json` is a real run.

Made on vLLM's CPU build: `vllm_chat.py --small --modes none,kvtide-eager/device-cache,kvtide-eager --rounds 2 --out …`.
"""

from __future__ import annotations

import copy
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from tools.chat_picture import picture_in_words
from tools.chat_report import (
    BEGIN,
    END,
    PAGE,
    PICTURE,
    README,
    caption,
    drawn,
    of_round,
    part,
    said,
    table,
    with_part,
)

from tools import chat_report

RUN = Path(__file__).with_name("chat.json")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def measured() -> Any:
    return json.loads(RUN.read_text())


def rows_of(measured: Any) -> dict[str, list[str]]:
    lines = table(measured).splitlines()[2:]
    cells = [[cell.strip(" *") for cell in line.strip("| ").split(" | ")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_every_mode_has_a_row_in_order_and_ours_is_bold(measured: Any) -> None:
    assert list(rows_of(measured)) == ["without offloading", "kvtide", "everything fits on the GPU"]
    (ours,) = (line for line in table(measured).splitlines() if "kvtide" in line)
    assert ours.startswith("| **kvtide** | **")


def test_a_number_is_the_one_that_was_measured(measured: Any) -> None:
    none = next(row for row in measured["rows"] if row["mode"] == "none")
    shown = rows_of(measured)["without offloading"]
    assert shown[1] == f"{none['follow_up_ms']['p50']:,.0f}"
    assert shown[3] == f"{none['between_ms']['mean']:,.1f}"
    assert shown[-2] == f"{none['done_s']:,.1f}"


def test_what_was_measured_in_several_groups_is_a_range(measured: Any) -> None:
    first, second = (row["follow_up_ms"] for row in measured["rows"] if row["mode"] == "kvtide-eager")
    first["p50"], second["p50"] = 151.0, 135.0
    assert rows_of(measured)["kvtide"][1] == "135 to 151"
    assert "kvtide 143 (" in picture_in_words(drawn(measured)), "the picture has the one in the middle"


def test_a_mode_with_options_says_them_and_a_variant_for_engineers_is_left_out(measured: Any) -> None:
    measured["rows"][0]["mode"] = "kvtide-lazy+host=8GiB"
    measured["rows"][1]["mode"] = "kvtide-eager@turn-4"
    assert list(rows_of(measured)) == ["kvtide", "kvtide, `lazy`, `host=8GiB`", "everything fits on the GPU"]


def test_it_says_on_what_and_with_what_it_was_measured(measured: Any) -> None:
    text = caption(measured)
    assert text.startswith("CPU and vLLM 0.32.0, a Llama of 2 layers and 2 KV heads, random weights. ")
    assert "4 conversations of 3 turns begin with 96 to 200 tokens of their own; " in text
    assert "questions have 40, answers 8. At most 2 requests are served at a time." in text
    assert "room for 640 tokens, and host memory is 0.0625 GiB. Rounds for each row: 2, 24 answers." in text


def test_answers_that_differ_and_modes_that_failed_are_said(measured: Any) -> None:
    measured["rows"][2]["other_answers"] = 3
    measured["failed"] = {"lmcache": "Traceback (most recent call last):\n  ...\nImportError: no lmcache here.\n"}
    assert [row[-1] for row in rows_of(measured).values()] == ["0", "0", "3"]
    assert caption(measured).endswith("LMCache, in process could not be run: ImportError: no lmcache here.")


def test_one_round_has_its_own_numbers_and_says_which_it_is(measured: Any) -> None:
    for number in (1, 2):
        found = of_round(measured, number)
        for row, whole in zip(found["rows"], measured["rows"], strict=True):
            own = whole["rounds"][number - 1]
            assert all(row[name] == own[name] for name in ("first_ms", "follow_up_ms", "between_ms", "done_s"))
            assert row["first_ms"] != whole["first_ms"]
        assert f"Round {number} of 2 of each row, 12 answers." in caption(found)


def test_one_round_has_its_own_other_answers(measured: Any) -> None:
    row = measured["rows"][2]
    row["other_answers"], row["rounds"][1]["other_answers"] = 3, 3
    shown = [[cells[-1] for cells in rows_of(of_round(measured, number)).values()] for number in (1, 2)]
    assert shown == [["0", "0", "0"], ["0", "0", "3"]]


def test_modes_that_did_not_have_a_round_are_left_out(measured: Any) -> None:
    del measured["rows"][2]["rounds"][1]
    assert list(rows_of(of_round(measured, 2))) == ["without offloading", "kvtide"]


def test_a_round_that_was_not_kept_whole_is_refused(measured: Any) -> None:
    with pytest.raises(ValueError, match="no row has kept a round 3"):
        of_round(measured, 3)
    for row in measured["rows"]:
        for each in row["rounds"]:
            del each["number"]
    with pytest.raises(ValueError, match="no row has kept a round 1"):
        of_round(measured, 1)


def test_rows_of_different_machines_are_not_put_together(measured: Any) -> None:
    measured["rows"][0]["machine"] = {"device": "NVIDIA H200", "vllm": "0.32.0"}
    with pytest.raises(ValueError, match="rows of several machines"):
        caption(measured)


@pytest.mark.parametrize(
    ("what", "scale", "text"),
    [
        ({"distribution": "constant", "value": 4_000}, 1, "4,000"),
        ({"distribution": "uniform", "min": 4_000, "max": 12_000}, 0.5, "2,000 to 6,000"),
        ({"halved": {"distribution": "uniform", "min": 12, "max": 18}}, 1, "6 to 9"),
        ({"distribution": "lognormal", "average": 1000, "max": 5000}, 1, "about 1,000"),
        ({"distribution": "zipf", "alpha": 1.2}, 1, "some (zipf)"),
    ],
)
def test_lengths_are_said_as_people_say_them(what: Any, scale: float, text: str) -> None:
    assert said(what, scale) == text


def test_a_bar_is_as_long_as_its_median_and_its_line_ends_at_p90(measured: Any) -> None:
    tree = ET.fromstring(drawn(measured))  # noqa: S314 (our own)
    bars = [bar for bar in tree.iter(f"{SVG}rect") if bar.get("class") in {"bar", "ours"}]
    ends = [line for line in tree.iter(f"{SVG}line") if line.get("x1") == line.get("x2")]
    assert [bar.get("class") for bar in bars] == ["bar", "ours", "bar"]
    lengths = [float(bar.get("width", "")) for bar in bars] + [
        float(end.get("x1", "")) - float(bar.get("x", "")) for bar, end in zip(bars, ends, strict=True)
    ]
    words = picture_in_words(drawn(measured))
    medians, p90s = zip(*re.findall(r"(\d+) \((\d+)\)", words), strict=True)
    longest = max(lengths)
    most_ms = max(map(int, p90s))
    for length, ms in zip(lengths, map(int, (*medians, *p90s)), strict=True):
        assert length / longest == pytest.approx(ms / most_ms, abs=1 / most_ms)


def test_the_page_has_a_place_for_it_and_the_rest_of_the_page_stays(measured: Any) -> None:
    before = PAGE.read_text(encoding="utf-8")
    after = with_part(before, measured)
    assert part(measured) in after
    assert (after.split(BEGIN)[0], after.split(END)[1]) == (before.split(BEGIN)[0], before.split(END)[1])
    assert with_part(after, measured) == after


def test_the_readme_and_the_page_say_what_the_picture_shows() -> None:
    words = picture_in_words(PICTURE.read_text(encoding="utf-8"))
    assert f"![{words}](docs/measured.svg)" in README.read_text(encoding="utf-8")
    assert f"![{words}](../measured.svg)" in PAGE.read_text(encoding="utf-8")


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, measured: Any, *options: str) -> tuple[int, dict[str, str]]:
    """Write a run over copies of the docs; return the exit code and what they are then."""
    for name in ("PAGE", "README", "PICTURE"):
        path = folder / name
        path.write_text(getattr(chat_report, name).read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(chat_report, name, path)
    (folder / "rows.json").write_text(json.dumps(measured))
    monkeypatch.setattr("sys.argv", ["chat_report", str(folder / "rows.json"), "--write", *options])
    return chat_report.main(), {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_a_run_is_written_to_page_picture_and_readme(
    measured: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = copy.deepcopy(measured)
    real["settings"]["small"] = False
    code, written = run(monkeypatch, tmp_path, real)
    words = picture_in_words(drawn(real))
    assert code == 0
    assert part(real) in written["PAGE"]
    assert written["PICTURE"] == drawn(real)
    assert f"![{words}](docs/measured.svg)" in written["README"]


def test_one_round_of_a_run_is_written(measured: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured["settings"]["small"] = False
    _, written = run(monkeypatch, tmp_path, measured, "--round", "2")
    assert part(of_round(measured, 2)) in written["PAGE"]
    assert written["PICTURE"] == drawn(of_round(measured, 2))


def test_a_run_of_the_tiny_model_is_never_written(
    measured: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = PAGE.read_text(encoding="utf-8")
    code, written = run(monkeypatch, tmp_path, measured)
    assert (code, written["PAGE"]) == (1, before)
    assert "its times mean nothing" in capsys.readouterr().out

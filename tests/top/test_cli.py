"""The commands: one reading for scripts, what is refused, and exit codes."""

from __future__ import annotations

import json
import re

import pytest

from kvtide.progress import LinesNowAndThen
from tests.command_line import check_refused, run
from tests.top.fake import BUSY, RECORDED, at_node, fake_server, metrics


def test_once_json_is_one_object_with_the_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(RECORDED) as server:
        code, out, err = run(capsys, "top", server.url, "--once", "--json")
    assert (code, err) == (0, "")
    (shown,) = json.loads(out)["servers"]
    assert (shown["state"], shown["models"], shown["window"]) == ("up", ["llama"], None)
    ratio = shown["since_start"]["hit_ratio"]
    assert ratio == {"device": 1184 / 5400, "host": 1984 / 5400, "tiers": 0, "all": pytest.approx(3168 / 5400)}
    assert shown["since_start"]["not_loaded"] == {"not_cached": 2016}
    assert shown["now"]["pool"]["fill"] == 1 - 193 / 256


def test_programs_are_told_how_many_engines_have_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(at_node(1, 0)) as server, fake_server(metrics(**BUSY)) as other:
        _, out, _ = run(capsys, "top", server.url, other.url, "--once", "--json")
    assert [shown["now"]["link"] for shown in json.loads(out)["servers"]] == [{"engines": 2, "away": 1}, None]


def test_once_without_json_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(metrics(**BUSY)) as server:
        code, out, err = run(capsys, "top", f"127.0.0.1:{server.port}", "--once")
    assert (code, err) == (0, "")
    assert "22.5%" in out
    assert "\x1b" not in out
    assert "last " not in out  # of one reading there is no curve, and no last minute
    assert "over time" not in out


@pytest.mark.parametrize("columns", [40, 80])
def test_once_fits_the_columns_there_are_and_nothing_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with fake_server(metrics(**BUSY)) as server, fake_server(metrics(**BUSY)) as other:
        _, out, _ = run(capsys, "top", server.url, other.url, "--once")
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    assert f"  127.0.0.1:{other.port}" in out


def test_a_server_that_does_not_answer_is_in_the_result_and_in_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with fake_server(metrics(**BUSY)) as server, fake_server("") as other:
        other.stop()
        code, out, _ = run(capsys, "top", server.url, other.url, "--once", "--json")
    assert code == 1
    up, down = json.loads(out)["servers"]
    assert (up["state"], down["state"], down["why"]) == ("up", "down", f"nobody listens at port {other.port}")
    assert down["since_start"] is None


def test_a_server_that_is_named_twice_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(metrics(**BUSY)) as server:
        _, out, _ = run(capsys, "top", server.url, f"127.0.0.1:{server.port}", "--once", "--json")
    assert len(json.loads(out)["servers"]) == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("top ftp://localhost --once", "URL='ftp://localhost': expected the address of a server"),
        ("top localhost:8000 --interval 0", "--interval='0': expected a number of at least 0.2 and at most 86400"),
        ("top localhost:8000 --interval nan", "--interval='nan': expected a number of at least 0.2"),
        ("top localhost:8000 --json", "--json works only with --once (see kvtide top --help)"),
        ("top localhost:8000 --once --web 1", "--web does not work with --once (see kvtide top --help)"),
        ("top localhost:8000 --once --interval 5", "--interval=5.0: expected to be left out with --once, which reads"),
        (
            "advise localhost:8000 --since-start --seconds 5",
            "--seconds=5.0: expected to be left out with --since-start",
        ),
        ("top localhost:8000 --web 70000", "--web=70000: expected a whole number of at least 0 and at most 65535"),
        ("top localhost:8000", "the live view needs a terminal that can be drawn on: use --once, or --web PORT"),
        ("top " + " ".join(f"host{n}" for n in range(65)) + " --once", "URL=65: expected at most 64 servers"),
        ("advise localhost:8000 --seconds 0", "--seconds='0': expected a number of at least 0.2"),
        ("advise 127.0.0.1:1", "URL='http://127.0.0.1:1/metrics': expected a server that runs kvtide and answers"),
    ],
)
def test_what_cannot_be_done_is_refused(capsys: pytest.CaptureFixture[str], argv: str, message: str) -> None:
    code, out, err = run(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"kvtide: error: {message}")


@pytest.mark.parametrize("command", ["top --once", "advise --since-start"])
def test_who_waits_for_a_slow_server_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("kvtide.progress.FIRST_LINE_S", 0.05)
    with fake_server(metrics(**BUSY)) as server:
        server.delay_s = 0.0005
        _, _, err = run(capsys, *command.split(), server.url)
    assert re.match(r"kvtide: reading, \d+ s\n", err)


def test_a_port_that_is_taken_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(metrics(**BUSY)) as server:
        check_refused(capsys, f"top {server.url} --web {server.port}", f"--web={server.port}: expected a port that can")


def test_advice_over_some_seconds_rests_on_what_happened_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(metrics(**BUSY)) as server:
        code, out, err = run(capsys, "advise", server.url, "--seconds", "0.4", "--json")
    assert code == 0
    shown = json.loads(out)
    assert [advice["kind"] for advice in shown["advice"]] == ["unknown"]
    assert shown["advice"][0]["numbers"] == {"requests": 0, "prompt_tokens": 0}
    assert shown["seconds"] >= 0.3
    assert err == ""  # who is soon done has nothing to tell
    assert server.asked >= 20


def test_advice_that_takes_long_says_how_far_it_is_also_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinesNowAndThen, "is_time", lambda _: True)
    with fake_server(metrics(**BUSY)) as server:
        _, _, err = run(capsys, "advise", server.url, "--seconds", "1.5")
    assert re.match(r"kvtide: looking: 0 s of 2 s, \d+ s\n", err)
    assert "kvtide: looking: 1 s of 2 s" in err


def test_advice_since_the_start_does_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(metrics(**{**BUSY, "time_to_first_token_seconds_count": 50})) as server:
        code, out, err = run(capsys, "advise", server.url, "--since-start")
    assert (code, err) == (0, "")
    assert out.startswith("50 requests with 10,000 prompt tokens since the server was started.\n")
    assert "Leave it as it is.\n  The host pool is 75.0% full" in out
    assert server.asked == 1


def test_a_server_without_kvtide_gets_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(metrics(num_requests_running=1)) as server:
        check_refused(capsys, f"advise {server.url} --since-start", f"URL='{server.url}': expected a server that runs")

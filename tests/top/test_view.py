"""The terminal's picture: all that is known, in 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kvtide.core.reasons import NotLoaded, NotStored
from kvtide.top.history import History, Server
from kvtide.top.paper import Paper
from kvtide.top.reading import parse
from kvtide.top.texts import bar, count_text, sparkline, time_text
from kvtide.top.view import screen
from tests.top.fake import BUSY, RECORDED, at_node, grown, metrics

OFF = {'tier="disk",rank="0"': 1.0, 'tier="disk",rank="1"': 0.0}


def picture(
    *servers: Server, width: int = 80, height: int = 50, chosen: int = 0, ascii_only: bool = False
) -> list[str]:
    """Return the lines of a frame, as wide as the terminal is."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=50, force_terminal=True, color_system=None)
    paper = Paper(width, height, ascii_only)
    console.print(screen(servers, chosen, paper=paper, clock="12:00:00"))
    return out.getvalue().splitlines()


def watched(url: str = "http://127.0.0.1:8000/metrics", **changed: float | dict[str, float]) -> Server:
    """Return a server that was read 100 times, a second apart."""
    history = History(url)
    for second in range(100):
        history.add(parse(metrics(**{**grown(BUSY, 1 + second), **changed})), float(second))
    return history.server()


def gone() -> Server:
    history = History("http://127.0.0.1:8001/metrics")
    history.add(parse(RECORDED), 0.0)
    history.miss("nobody listens there", 1.0)
    return history.server()


def never() -> Server:
    history = History("http://127.0.0.1:8002/metrics")
    history.miss("no answer within 5 s", 0.0)
    return history.server()


def restarted() -> Server:
    history = History("http://127.0.0.1:8003/metrics")
    history.add(parse(metrics(**grown(BUSY, 2))), 0.0)
    history.add(parse(metrics(**BUSY)), 1.0)
    return history.server()


def crowded() -> Server:
    """Return a server with every reason that there is."""
    history = History("http://127.0.0.1:8005/metrics")
    reasons: dict[str, float | dict[str, float]] = {
        f"kvtide_{name}_total": {f'reason="{reason.value}"': 1000.0 for reason in all_of}
        for name, all_of in (("not_loaded", NotLoaded), ("not_stored", NotStored))
    }
    history.add(parse(metrics(**{**BUSY, **reasons})), 0.0)
    return history.server()


def packing() -> Server:
    """Return a server that saves 64 MiB a second, and has a block a second that does not pack."""
    packed: dict[str, float | dict[str, float]] = {
        "kvtide_packing_saved_bytes_total": {'direction="store"': 48.0 * 2**20, 'direction="load"': 16.0 * 2**20},
        "kvtide_unpacked_blocks_total": 1.0,
    }
    history = History("http://127.0.0.1:8007/metrics")
    for second in range(100):
        history.add(parse(metrics(**grown({**BUSY, **packed}, 1 + second))), float(second))
    return history.server()


def using_a_node(*attached: int) -> Server:
    history = History("http://127.0.0.1:8006/metrics")
    history.add(parse(at_node(*attached)), 0.0)
    return history.server()


def new() -> Server:
    return History("http://127.0.0.1:8004/metrics").server()


def line_of(lines: list[str], begin: str) -> str:
    (found,) = [line for line in lines if line.startswith(begin)]
    return found


def test_a_server_at_work_shows_shares_rates_fills_and_reasons() -> None:
    lines = picture(watched())
    assert "up, 3 running, 1 waiting" in line_of(lines, "127.0.0.1:8000")
    for level, share in (("device", "50.0%"), ("host      ", "22.5%"), ("tiers", "7.5%"), ("computed", "20.0%")):
        assert line_of(lines, level).split()[1:3] == [share, share]
    assert "200 MiB/s" in line_of(lines, "store")
    assert "100 MiB/s" in line_of(lines, "load")
    assert line_of(lines, "TTFT").split()[1:5] == ["400", "ms", "400", "ms"]
    assert line_of(lines, "  saved").split()[1:5] == ["200", "ms", "200", "ms"]
    assert "75.0% of 160 MiB, 160 slots, 8 pinned" in line_of(lines, "host pool")
    assert "25.0% of 8 GiB, put 64 MiB/s, got 32 MiB/s" in line_of(lines, "tier disk")
    assert "not_cached 108.0k, last_token 12.0k" in line_of(lines, "not loaded (tokens, last 60 s)")
    assert "host_full 720" in line_of(lines, "not stored (blocks, last 60 s)")
    assert "failed 420" in line_of(lines, "not sunk (blocks, last 60 s)")


def test_a_server_that_packs_shows_what_that_saves_and_what_does_not_pack() -> None:
    assert "64 MiB/s    6.25 GiB  less; 100 blocks do not pack" in line_of(picture(packing()), "packing")
    assert "64 MiB/s  unpacked 100" in line_of(picture(packing(), width=40), "packing")
    assert not [line for line in picture(watched()) if line.startswith("packing")], "nothing is said where it is off"


def test_shares_over_time_are_curves() -> None:
    curve = line_of(picture(watched()), "device")[40:].strip()
    assert len(curve) > 30
    assert set(curve) == {"▅"}


def test_a_tier_that_is_off_stands_out() -> None:
    lines = picture(watched(kvtide_tier_off=OFF))
    assert "! tier disk is switched off on rank 0 after failures" in "\n".join(lines)
    assert "OFF" in line_of(lines, "tier disk")


def test_other_trouble_is_said() -> None:
    changed: dict[str, float | dict[str, float]] = {
        "kvtide_transfers_unanswered": 2,
        "kvtide_loads_failed_total": 3,
        "kvtide_stopped": 1,
        "kvtide_tier_corrupt_records_total": {'tier="disk"': 4.0},
    }
    history = History("http://127.0.0.1:8000/metrics")
    history.add(parse(metrics(**{**BUSY, **changed})), 0.0)
    text = "\n".join(picture(history.server(), width=120))
    assert "! 2 transfers overdue" in text
    assert "! loads failed: 3" in text
    assert "! tier disk: 4 records did not verify" in text
    assert "offloading has stopped" in text


@pytest.mark.parametrize("width", [40, 80])
def test_a_server_whose_node_is_away_says_so_and_shows_no_pool_of_its_own(width: int) -> None:
    text = " ".join(" ".join(picture(using_a_node(0), width=width)).split())
    assert "! the node is away: nothing is stored or loaded there; start it, or see in the log why" in text
    assert "host pool AWAY at a node" in text
    assert "0 slots" not in text


def test_a_server_with_its_node_says_where_its_memory_is() -> None:
    lines = picture(using_a_node(1, 1))
    assert line_of(lines, "host pool").split() == ["host", "pool", "at", "a", "node"]
    assert "away" not in "\n".join(lines)


def test_of_several_engines_it_is_said_how_many_have_no_node() -> None:
    assert "! the node is away for 1 of 2 engines: nothing is" in "\n".join(picture(using_a_node(1, 0)))


def test_a_server_that_is_gone_keeps_its_last_numbers_and_says_why() -> None:
    lines = picture(gone())
    assert "down" in line_of(lines, "127.0.0.1:8001")
    assert "! nobody listens there" in "\n".join(lines)
    assert line_of(lines, "device").split()[2] == "21.9%"


def test_a_server_that_never_answered_shows_nothing_but_why() -> None:
    lines = picture(never())
    assert "! no answer within 5 s" in "\n".join(lines)
    assert not any(line.startswith("device") for line in lines)


def test_a_restart_is_said() -> None:
    assert "restarted 1x" in line_of(picture(restarted()), "127.0.0.1:8003")


def test_several_servers_have_a_line_each_and_the_chosen_one_all_its_numbers() -> None:
    lines = picture(watched(), gone(), never(), new(), chosen=1)
    assert line_of(lines, "  127.0.0.1:8000").split()[1:4] == ["50.0%", "22.5%", "7.5%"]
    assert line_of(lines, "> 127.0.0.1:8001").split()[2] == "down"
    assert line_of(lines, "  127.0.0.1:8004").split()[1] == "waiting"
    assert line_of(lines, "device").split()[2] == "21.9%"


@pytest.mark.parametrize("width", [40, 50])
def test_a_narrow_terminal_has_names_curves_and_alarms_in_full(width: int) -> None:
    lines = picture(watched(kvtide_tier_off=OFF), gone(), width=width)
    assert max(map(len, lines)) <= width
    assert line_of(lines, "> 127.0.0.1:8000").split()[2:] == ["50.0%", "22.5%", "7.5%"]
    assert line_of(lines, "  127.0.0.1:8001").split()[1:] == ["down"]
    assert len(line_of(lines, "device").split()[2]) == width - 23  # the curve has all the room that is left
    assert "! tier disk is switched off on rank 0 after failures" in " ".join(" ".join(lines).split())
    assert "OFF of 8 GiB" in line_of(lines, "tier disk")
    assert lines[0].split() == ["kvtide", "top", "q", "leaves", "12:00:00"]
    assert "not_cached 108.0k, last_token 12.0k" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("chosen", [0, 30, 63])
def test_of_many_servers_those_around_the_chosen_one_are_shown(chosen: int) -> None:
    server = watched()
    servers = [replace(server, url=f"http://host{number}:8000/metrics") for number in range(64)]
    lines = picture(*servers, height=24, chosen=chosen)
    assert line_of(lines, f"> host{chosen}:8000")
    assert line_of(lines, "  58 more")
    assert line_of(lines, "load")  # the details are still within 24 lines
    assert lines.index(line_of(lines, "load")) < 24


def test_numbers_of_a_minute_say_how_long_was_looked_at() -> None:
    history = History("http://127.0.0.1:8000/metrics")
    for second in (0, 7):
        history.add(parse(metrics(**grown(BUSY, 1 + second))), float(second))
    text = "\n".join(picture(history.server()))
    assert "last 7 s since start" in text
    assert "not loaded (tokens, last 7 s): not_cached" in text


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_the_terminal_and_none_is_broken(width: int, ascii_only: bool) -> None:
    far = watched("http://a-host-with-a-very-long-name.cluster.example.org:8000/some/path/metrics", kvtide_tier_off=OFF)
    servers = [far, watched(), crowded(), gone(), never(), restarted(), new()]
    for chosen in range(len(servers)):
        lines = picture(*servers, width=width, chosen=chosen, ascii_only=ascii_only)
        assert max(len(line) for line in lines) <= width
        if ascii_only:
            assert "".join(lines).replace("…", "").isascii()
    for server in (far, crowded()):
        assert len(picture(server, width=width)) == len(picture(server, width=500))


def test_one_server_fits_a_small_terminal() -> None:
    assert len(picture(watched())) <= 24


def test_curves_show_gaps_and_keep_their_width() -> None:
    assert sparkline([None, 0.0, 1.0], 5, top=1.0) == "   ▁█"
    assert sparkline([0.0, 0.0], 2) == "▁▁"
    assert sparkline([5.0, 10.0], 2, ascii_only=True) == "=#"
    assert sparkline([1.0] * 9, 4) == "████"
    assert sparkline([], 3) == "   "
    assert sparkline([2.0], 1, top=1.0) == "█"


def test_numbers_are_short() -> None:
    assert [count_text(count) for count in (0, 9_999, 10_000, 1_234_567, 5e9)] == [
        "0",
        "9,999",
        "10.0k",
        "1.2M",
        "5.0G",
    ]
    assert time_text(-250) == "-250 ms"
    assert bar(None, 4) == "░░░░"
    assert bar(2.0, 4) == "████"

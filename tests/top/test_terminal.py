"""The live view: no flicker, keys, and servers that come and go while it runs."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from kvtide.top.history import Server
from kvtide.top.terminal import show
from tests.top.fake import BUSY, KVTIDE, FakeServer, fake_server, grown, metrics
from tests.top.test_view import gone, watched

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME, BEGIN, END = "\x1b[H", "\x1b[?1049h", "\x1b[?1049l"
WAIT_S = 60.0


def drawn(frames: int, keys: str = "") -> str:
    """Return all that goes to the terminal in so many frames, of 80 times 24."""
    servers = [watched(), gone()]
    pressed = iter(keys)
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True, color_system="standard", legacy_windows=False)

    def read() -> list[Server]:
        servers.reverse()
        return list(servers)

    show(read, console, lambda timeout_s: next(pressed, None), frames=frames)
    return out.getvalue()


def test_hundreds_of_frames_only_move_the_cursor_and_never_clear_the_screen() -> None:
    text = drawn(400)
    body = text[text.index(BEGIN) + len(BEGIN) : text.rindex(END)]
    frames = body.split(HOME)[1:]
    assert len(frames) >= 400
    used = set(CONTROL.findall(body))
    assert {code for code in used if not code.endswith("m")} <= {HOME, "\x1b[?25l", "\x1b[?25h"}
    for frame in frames[1:]:
        lines = CONTROL.sub("", frame).split("\n")
        assert [len(line.rstrip("\r")) for line in lines] == [80] * 24  # every cell is written over


def test_the_terminal_is_given_back_as_it_was() -> None:
    text = drawn(3)
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize("key", ["q", "Q", "\x1b", "\x03", "\x04"])
def test_keys_leave(key: str) -> None:
    assert drawn(500, keys="xx" + key).count(HOME) < 10


def test_keys_choose_a_server_and_go_round() -> None:
    def marked(keys: list[str | None]) -> list[str]:
        pressed = iter(keys)
        out = io.StringIO()
        console = Console(file=out, width=80, height=24, force_terminal=True, color_system=None)
        show(lambda: [watched(), gone()], console, lambda timeout_s: next(pressed, None), frames=len(keys) + 1)
        frames = CONTROL.sub("", out.getvalue().replace(HOME, "\f")).split("\f")
        return [frame.split("> ")[1].split()[0][-4:] for frame in frames if "> " in frame]

    assert marked([]) == ["8000"]
    assert marked(["\x1b[B", "\x1b[B", "k", "\t"]) == ["8000", "8001", "8000", "8001", "8000"]


class Terminal:
    """`kvtide top` in a real terminal of 80 times 30."""

    def __init__(self, *urls: str, term: str = "xterm-256color") -> None:
        self.fd, inner = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(  # noqa: S603 (our own)
            [*KVTIDE, "top", *urls, "--interval", "0.2"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**environment, "TERM": term},
        )
        os.close(inner)
        self.text = ""

    def wait_for(self, words: str) -> None:
        """Read until some words are there, in what is read from now on."""
        self.text = ""
        deadline_s = time.monotonic() + WAIT_S
        while words not in CONTROL.sub("", self.text):
            assert time.monotonic() < deadline_s, f"{words!r} is not in {self.text[-3000:]!r}"
            self.read(0.2)

    def read(self, timeout_s: float) -> bool:
        if not select.select([self.fd], [], [], timeout_s)[0]:
            return False
        try:
            self.text += os.read(self.fd, 1 << 16).decode("utf-8", "replace")
        except OSError:  # closed at its other end
            return False
        return True

    def ends(self) -> int:
        """Return the exit code; what it still prints is read."""
        deadline_s = time.monotonic() + WAIT_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            self.read(0.1)
        while self.read(0.1):
            pass
        return self.process.wait(1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server(metrics(**BUSY)) as fake:
        yield fake


def test_a_terminal_that_cannot_be_drawn_on_is_refused(server: FakeServer) -> None:
    terminal = Terminal(server.url, term="dumb")
    assert terminal.ends() == 2
    assert "use --once, or --web PORT" in terminal.text
    terminal.close()


@pytest.fixture
def terminal(server: FakeServer) -> Iterator[Terminal]:
    terminal = Terminal(server.url)
    yield terminal
    terminal.close()


def test_a_server_that_goes_away_comes_back_and_was_restarted_is_shown_all_the_while(
    terminal: Terminal, server: FakeServer
) -> None:
    terminal.wait_for("up, 3 running")
    server.text = metrics(**grown(BUSY, 2))
    terminal.wait_for("50.0%       50.0%")  # the window, and since the start
    server.stop()
    terminal.wait_for("nobody listens at port")
    server.text = metrics(**{**BUSY, "num_requests_running": 7})
    server.start()
    terminal.wait_for("up, 7 running")
    terminal.wait_for("restarted 1x")
    os.write(terminal.fd, b"q")
    assert terminal.ends() == 0
    assert END in terminal.text


@pytest.mark.parametrize(("told", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_who_ends_it_gets_no_traceback_and_the_terminal_back(
    terminal: Terminal, told: signal.Signals, code: int
) -> None:
    terminal.wait_for("up, 3 running")
    assert not termios.tcgetattr(terminal.fd)[3] & termios.ICANON  # keys come one by one
    terminal.process.send_signal(told)
    assert terminal.ends() == code
    assert END in terminal.text
    assert "Traceback" not in terminal.text
    assert termios.tcgetattr(terminal.fd)[3] & termios.ICANON

"""The page: for this machine only, and complete in itself."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse

import pytest

from kvtide.top.history import Server
from kvtide.top.web import Handler, Listening, page
from tests.top.test_view import gone, never, watched


@contextmanager
def served(*servers: Server) -> Iterator[Listening]:
    """Serve what is known of some servers, on a free port."""
    with Listening(("127.0.0.1", 0), Handler) as listening:
        listening.servers, listening.interval_s = lambda: list(servers), 0.2
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield listening
        listening.shutdown()
        thread.join(10)


@contextmanager
def answer(listening: Listening, path: str, host: str | None = None) -> Iterator[HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", listening.server_port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    with connection.getresponse() as response:
        yield response
    connection.close()


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    text = page().decode()
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]+[^\s\"'`]*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<script[^>]+src|<link[^>]+stylesheet|@import|url\(", text)


def test_the_page_may_not_load_anything_from_elsewhere() -> None:
    with served(watched()) as listening, answer(listening, "/") as response:
        assert response.status == 200
        assert response.read() == page()
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy


def test_the_data_are_those_of_the_terminal_with_curves_and_alarms() -> None:
    with served(watched(), gone(), never()) as listening, answer(listening, "/data") as response:
        shown = json.load(response)
    assert shown["interval_s"] == 0.2
    up, down, silent = shown["servers"]
    assert up["window"]["hit_ratio"]["host"] == 0.225
    assert len(up["points"]) == 99
    assert up["points"][-1]["bytes_per_s"]["store"] == 200 << 20
    assert (down["state"], down["alarms"], down["points"]) == ("down", ["nobody listens there"], [None])
    assert silent["now"] is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:1234"])
def test_browsers_of_this_machine_are_answered(host: str) -> None:
    with served(watched()) as listening, answer(listening, "/data", host) as response:
        assert response.status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", ""])
def test_a_page_from_elsewhere_that_got_a_name_for_this_machine_is_not(host: str) -> None:
    with served(watched()) as listening, answer(listening, "/data", host) as response:
        assert response.status == 403
        assert b"servers" not in response.read()


@pytest.mark.parametrize("path", ["/metrics", "/../page.html", "/data/"])
def test_there_is_nothing_else(path: str) -> None:
    with served(watched()) as listening, answer(listening, path) as response:
        assert response.status == 404

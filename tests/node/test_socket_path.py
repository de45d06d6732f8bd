"""What can be the path of a node's socket, and what cannot."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.node.socket_path import PATH_BYTES_MAX, read_node_path


def test_a_node_need_not_be_there_yet_nor_the_folder_that_is_made_when_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    assert read_node_path("node", str(path)) == path
    nowhere = tmp_path / "nowhere" / "node.sock"
    assert read_node_path("node", str(nowhere)) == nowhere
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert read_node_path("node", str(path)) == path


def test_what_can_be_no_socket_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    long = str(tmp_path / ("n" * PATH_BYTES_MAX))
    for value, expected in (
        (3, "the path of the socket"),
        ("", "the path of the socket"),
        ("a\0b", "the path of the socket"),
        (long, "a path of at most 107 bytes"),
        (str(tmp_path / "file" / "node.sock"), "what it is said to be in is no folder"),
        (str(tmp_path / "file"), "the socket of a node; what is there is no socket"),
        (str(tmp_path), "the socket of a node; what is there is no socket"),
    ):
        with pytest.raises(ConfigError) as refused:
            read_node_path("node", value)
        assert str(refused.value).startswith(f"node={value!r}: expected ")
        assert expected in str(refused.value)

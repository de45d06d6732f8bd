"""Who may connect to a node, and which node an engine may trust (I15)."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from kvtide.node.credentials import Access, Credentials, check_node, credentials_of
from kvtide.node.errors import Refused

ME = os.geteuid()


def of(uid: int, *groups: int) -> Credentials:
    return Credentials(1, uid, frozenset(groups))


def test_the_kernel_says_who_is_there() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = credentials_of(ours)
    assert (found.pid, found.uid) == (os.getpid(), ME)
    assert found.groups >= {os.getegid(), *os.getgroups()}


def test_the_same_user_may_connect() -> None:
    Access(uid=1000).check(of(1000))


@pytest.mark.parametrize("peer", [of(1001, 5), of(0, 0)])
def test_nobody_else_may_not_even_root(peer: Credentials) -> None:
    with pytest.raises(Refused, match=f"this node is for user 1000, and this is user {peer.uid}: run as user 1000"):
        Access(uid=1000).check(peer)


def test_members_of_the_named_group_may() -> None:
    access = Access(uid=1000, group=77)
    access.check(of(1001, 5, 77))
    access.check(of(1000))
    for peer in (of(1001, 5), of(0, 0)):
        with pytest.raises(Refused, match=r"for user 1000 and group 77, .*: .* become a member of that group"):
            access.check(peer)


def test_an_engine_trusts_nodes_of_its_own_user_and_of_root(tmp_path: Path) -> None:
    check_node(tmp_path, of(ME))
    check_node(tmp_path, of(0))


def test_an_engine_does_not_trust_a_stranger_who_listens_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"is of user {ME + 1}, and this is user {ME}: start a node of your own"):
        check_node(tmp_path, of(ME + 1))


@pytest.mark.parametrize(
    ("owner", "group", "mode", "trusted"),
    [
        (ME + 1, os.getegid(), 0o660, True),
        (ME + 1, os.getegid(), 0o600, False),
        (ME + 1, 54321, 0o660, False),
        (ME + 2, os.getegid(), 0o660, False),
    ],
)
def test_a_node_for_a_group_is_trusted_by_its_members(
    owner: int, group: int, mode: int, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = os.stat_result((stat.S_IFSOCK | mode, 1, 1, 1, owner, group, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: shown)
    if trusted:
        check_node(Path("/node.sock"), of(ME + 1))
    else:
        with pytest.raises(Refused, match="start a node of your own"):
            check_node(Path("/node.sock"), of(ME + 1))

"""What tests need of the system is brought where it is missing, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.system_packages import PACKAGES, bring, is_here

from tools import system_packages


def test_programs_and_libraries_are_found() -> None:
    assert is_here("sh")
    assert is_here("libc.so.6")
    assert not is_here("no-such-program")
    assert not is_here("libno-such-library.so.1")


def test_what_the_system_has_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_packages, "is_here", lambda name: True)
    monkeypatch.setenv("PATH", "")
    bring(list(PACKAGES), tmp_path)
    assert not list(tmp_path.iterdir())


def test_where_there_is_no_apt_get_it_says_so_and_what_would_bring_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_packages, "is_here", lambda name: False)
    monkeypatch.setenv("PATH", "")
    bring(["redis-server", "libnuma.so.1"], tmp_path)
    assert "`apt-get install redis-server libnuma1` brings it" in capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "nothing half done is left"

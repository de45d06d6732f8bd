"""What tests need of the system is brought where it is missing, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.system_packages import PACKAGES, bring, is_here, unpack

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


def test_the_browser_is_the_program_and_not_the_script_that_looks_for_it_elsewhere(tmp_path: Path) -> None:
    for place in ("usr/bin", "usr/lib/chromium"):
        (tmp_path / "root" / place).mkdir(parents=True)
        (tmp_path / "root" / place / "chromium-headless-shell").touch()
    unpack([], tmp_path)
    program = tmp_path / "bin" / "chromium-headless-shell"
    assert program.resolve() == tmp_path / "root" / "usr/lib/chromium/chromium-headless-shell"


def test_libraries_are_found_with_their_version_at_either_end_or_without_but_not_the_browsers_own(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "root" / "usr/lib/x86_64-linux-gnu"
    (folder / "pulseaudio").mkdir(parents=True)
    (folder / "libpulse.so.0").touch()
    (folder / "pulseaudio" / "libpulsecommon-16.1.so").touch()
    (folder / "libnspr4.so").touch()
    (tmp_path / "root" / "usr/lib/chromium").mkdir()
    (tmp_path / "root" / "usr/lib/chromium" / "libEGL.so").touch()
    unpack([], tmp_path)
    found = {link.name for link in (tmp_path / "lib").iterdir()}
    assert found == {"libpulse.so.0", "libpulsecommon-16.1.so", "libnspr4.so"}


def test_where_there_is_no_apt_get_it_says_so_and_what_would_bring_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_packages, "is_here", lambda name: False)
    monkeypatch.setenv("PATH", "")
    bring(["redis-server", "libnuma.so.1"], tmp_path)
    assert "`apt-get install redis-server libnuma1` brings it" in capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "nothing half done is left"


def test_what_is_not_known_is_told_and_brings_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "system"
    monkeypatch.setattr("sys.argv", ["system_packages.py", str(folder), "prom"])
    with pytest.raises(SystemExit):
        system_packages.main()
    assert "not known: prom" in capsys.readouterr().err
    assert not folder.exists()

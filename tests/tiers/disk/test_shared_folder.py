"""One folder for several namespaces: locked, within one budget, and nobody's blocks are removed who uses them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.tiers.disk.lock import FolderLock
from kvtide.tiers.disk.place import named_place
from kvtide.tiers.disk.set_aside import with_aside
from kvtide.tiers.disk.shared_folder import SharedFolder, stores_inside
from kvtide.tiers.disk.store_folder import FORMAT_NAME, used_bytes
from tests.tiers.disk.test_backend import items
from tests.tiers.support import disk_bytes, disk_config, disk_store

SIZE = 8 << 20
NAMES = ["0" * 16, "1" * 16, "2" * 16]


def fill(folder: SharedFolder, name: str, share: float) -> Path:
    """Let a namespace have some blocks."""
    path, nbytes = folder.enter(name, share)
    store = disk_store(path, nbytes)
    store.put(items(range(10)))
    store.close()
    return path


def test_each_namespace_has_a_store_of_its_own_with_its_share(tmp_path: Path) -> None:
    folder = SharedFolder("path", tmp_path, SIZE)
    first, second = fill(folder, NAMES[0], 0.5), fill(folder, NAMES[1], 0.25)
    assert first != second
    assert folder.enter(NAMES[1], 0.25) == (second, SIZE // 4)
    assert list(stores_inside(tmp_path)) == [first, second]
    folder.close()


def test_a_folder_is_for_one_node_alone(tmp_path: Path) -> None:
    folder = SharedFolder("path", tmp_path, SIZE)
    with pytest.raises(ConfigError, match=rf"a folder that no other server uses, and process {os.getpid()} does"):
        SharedFolder("path", tmp_path, SIZE)
    folder.close()
    folder.close()
    SharedFolder("path", tmp_path, SIZE).close()


def test_a_folder_of_an_engine_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    disk_store(tmp_path).close()
    with pytest.raises(ConfigError, match="a folder without blocks of an engine: choose another, or empty"):
        SharedFolder("path", tmp_path, SIZE)
    FolderLock(tmp_path).close()
    assert (tmp_path / "rank-0-of-1").is_dir()


def test_f21_what_nobody_uses_gives_way_oldest_first_and_only_when_room_is_needed(tmp_path: Path) -> None:
    folder = SharedFolder("path", tmp_path, SIZE)
    paths = [fill(folder, name, 0.3) for name in NAMES]
    for age, path in zip((1, 3, 2), paths, strict=True):
        folder.leave(path.name.removeprefix("namespace-"))
        os.utime(path, (age, age))
    used = [disk_bytes(path) for path in paths]
    folder.enter("a" * 16, 0.05)
    assert list(stores_inside(tmp_path))[:3] == [paths[0], paths[2], paths[1]], "there is room for all"
    left = 1 - 0.05 - (used[1] + used[2] + used[0] / 2) / SIZE
    folder.enter("b" * 16, left)
    assert [path.exists() for path in paths] == [False, True, True]
    folder.enter(NAMES[1], 0.1)
    folder.enter("b" * 16, 0.85)
    assert [path.exists() for path in paths] == [False, True, False], "one that is used stays"
    folder.close()


def test_f21_what_was_set_aside_in_a_store_that_nobody_uses_counts_and_goes_with_it(tmp_path: Path) -> None:
    folder = SharedFolder("path", tmp_path, SIZE)
    path = fill(folder, NAMES[0], 0.5)
    (path / "kvtide-store.json").write_text('{"format": 99}')
    fill(folder, NAMES[0], 0.5)
    folder.leave(NAMES[0])
    assert used_bytes(path / "format-99") > 2 * 4096
    folder.enter(NAMES[1], 1 - (used_bytes(path) + 4096) / SIZE)
    assert not path.exists()
    folder.close()


def test_a_store_that_somebody_looks_at_is_not_removed_from_under_him(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SharedFolder("path", tmp_path, SIZE)
    path = fill(folder, NAMES[0], 0.5)
    folder.leave(NAMES[0])
    with named_place(str(path)).locked():
        folder.enter(NAMES[1], 1.0)
        assert path.is_dir()
    assert f"keeps {path}" in caplog.text
    folder.enter(NAMES[1], 1.0)
    assert not path.exists()
    folder.close()


def test_f21_what_has_to_stay_counts_and_the_next_one_gives_way(tmp_path: Path) -> None:
    folder = SharedFolder("path", tmp_path, SIZE)
    paths = [fill(folder, name, 0.3) for name in NAMES[:2]]
    for age, path in zip((1, 2), paths, strict=True):
        folder.leave(path.name.removeprefix("namespace-"))
        os.utime(path, (age, age))
    with named_place(str(paths[0])).locked():
        folder.enter(NAMES[2], 1 - (used_bytes(paths[0]) + 4096) / SIZE)
    assert [path.exists() for path in paths] == [True, False]
    folder.close()


def test_bytes_of_a_nodes_stores_count_as_its_own_when_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SharedFolder("path", tmp_path, SIZE)
    path = fill(folder, NAMES[0], 1.0)
    folder.close()
    monkeypatch.setattr("kvtide.tiers.disk.options.room", lambda _: SIZE - disk_bytes(path) // 2)
    assert disk_config(tmp_path, SIZE).size == SIZE


def test_bytes_that_were_set_aside_in_a_nodes_store_count_too_for_they_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SharedFolder("path", tmp_path, SIZE)
    path = fill(folder, NAMES[0], 1.0)
    (path / FORMAT_NAME).write_text("damaged")
    disk_store(path).close()
    folder.close()
    used = sum(map(used_bytes, with_aside(path)))
    monkeypatch.setattr("kvtide.tiers.disk.options.room", lambda _: SIZE - used)
    assert disk_config(tmp_path, SIZE).size == SIZE

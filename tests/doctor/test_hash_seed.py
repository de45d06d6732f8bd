"""F23: keys that are not the same in the next process are found before the server is started."""

from __future__ import annotations

from pathlib import Path

from kvtide.doctor.asked import Asked
from kvtide.doctor.checkup import all_checks
from kvtide.doctor.hash_seed import check_hash_seed
from tests.doctor.support import FIXED_SEED, install_vllm, is_bad, is_ok, is_warning, machine


def test_without_tiers_or_a_node_the_seed_does_not_matter(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=install_vllm(tmp_path))
    assert is_ok(check_hash_seed(here, outlived=False), "not set", "there are none")


def test_a_seed_that_is_set_is_well_and_shown(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=install_vllm(tmp_path), environ={"PYTHONHASHSEED": "7"})
    assert is_ok(check_hash_seed(here, outlived=True), "PYTHONHASHSEED=7", "the same for all servers")


def test_a_vllm_that_draws_a_seed_for_each_process_needs_one_beside_tiers(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=install_vllm(tmp_path))
    assert is_bad(check_hash_seed(here, outlived=True), "the server would not start", "PYTHONHASHSEED=0")


def test_a_vllm_with_a_fixed_seed_needs_none(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=install_vllm(tmp_path, source=FIXED_SEED))
    assert is_ok(check_hash_seed(here, outlived=True), "does not need it", "xxhash")


def test_where_there_is_no_vllm_to_ask_no_seed_is_a_warning(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=tmp_path)
    assert is_warning(check_hash_seed(here, outlived=True), "not set", "PYTHONHASHSEED=0")


def test_it_matters_to_a_tier_that_cannot_be_read_yet(tmp_path: Path) -> None:
    here = machine(tmp_path, packages=install_vllm(tmp_path))
    asked = Asked(given=True, extra={"tiers": [{"type": "disk", "path": "/nowhere/at/all", "size": "1GiB"}]})
    found = {check.name: check.run() for check in all_checks(here, asked) if check.name in ("config", "hash_seed")}
    assert is_bad(found["config"], "/nowhere/at/all", "mkdir -p")
    assert is_bad(found["hash_seed"], "the server would not start", "PYTHONHASHSEED=0")

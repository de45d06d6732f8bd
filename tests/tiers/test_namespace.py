"""F23: what the bytes depend on is part of where they are, and what differs is said."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from kvtide.tiers import Namespace, hashing_part, unstable_keys
from kvtide.tiers.namespace import manifest_from_json
from tests.tiers.support import NAMESPACE


@pytest.mark.parametrize("part", [field.name for field in fields(Namespace) if field.name != "settings"])
def test_f23_every_part_changes_the_digest_and_is_named_when_it_differs(part: str) -> None:
    value = getattr(NAMESPACE, part)
    change: dict[str, Any] = {part: value + 1 if isinstance(value, int) else f"{value}!"}
    other = replace(NAMESPACE, **change)
    assert other.digest != NAMESPACE.digest
    (difference,) = other.differences(NAMESPACE.manifest())
    assert difference.startswith(f"{part}: stored ")


def test_f23_every_setting_changes_the_digest_and_is_named_when_it_differs() -> None:
    stored = replace(NAMESPACE, settings=(("model.a", "1"), ("model.b", "2")))
    other = replace(NAMESPACE, settings=(("model.a", "1"), ("model.b", "3")))
    assert len({NAMESPACE.digest, stored.digest, other.digest}) == 3
    assert other.differences(stored.manifest()) == ['model.b: stored "2", now "3"']


def test_the_same_parts_give_the_same_digest() -> None:
    assert replace(NAMESPACE).digest == NAMESPACE.digest
    assert NAMESPACE.for_rank(0) == NAMESPACE
    assert NAMESPACE.for_rank(1).digest != NAMESPACE.digest


def test_the_digest_does_not_change_between_versions_of_kvtide() -> None:
    assert NAMESPACE.digest.hex() == "d6d10e5c2165c21d31bca69a55870581"


def test_a_manifest_survives_being_written() -> None:
    stored = manifest_from_json(NAMESPACE.to_json())
    assert stored is not None
    assert NAMESPACE.differences(stored) == []
    assert manifest_from_json(b"\xff{") is None
    assert manifest_from_json("[]") is None


def test_parts_that_one_side_does_not_know_are_differences_too() -> None:
    stored = {**NAMESPACE.manifest(), "weather": "rain"}
    del stored["dtype"]
    assert NAMESPACE.differences(stored) == [
        'dtype: stored nothing, now "float32"',
        'weather: stored "rain", now nothing',
    ]


@pytest.mark.parametrize(
    ("algorithm", "seed", "has_fixed_seed", "stable"),
    [
        ("sha256", None, True, True),
        ("sha256_cbor", None, True, True),
        ("sha256", None, False, False),
        ("sha256_cbor", None, False, False),
        ("sha256", "0", False, True),
        ("sha256", "random", False, True),
        ("xxhash", None, True, False),
        ("xxhash_cbor", None, True, False),
        ("xxhash", "7", True, True),
        ("builtin", "random", False, False),
        ("builtin", "7", False, True),
    ],
)
def test_f23_keys_that_are_random_in_each_process_are_found_out(
    algorithm: str, seed: str | None, has_fixed_seed: bool, stable: bool
) -> None:
    problem = unstable_keys(algorithm, seed, has_fixed_seed=has_fixed_seed)
    assert (problem is None) == stable
    assert problem is None or "PYTHONHASHSEED" in problem


def test_the_seed_and_where_it_matters_the_version_of_python_are_part_of_the_namespace() -> None:
    plain = hashing_part("sha256_cbor", None, (3, 11))
    assert plain == hashing_part("sha256_cbor", None, (3, 12)) == "sha256_cbor"
    assert len({plain, hashing_part("sha256_cbor", "1", (3, 11)), hashing_part("sha256_cbor", "2", (3, 11))}) == 3
    assert hashing_part("sha256", None, (3, 11)) != hashing_part("sha256", None, (3, 12))
    assert "geheim" not in hashing_part("xxhash", "geheim", (3, 11))

"""The public names are exactly the exported ones."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import kvtide
from kvtide import errors

MUST_EXPORT = ["kvtide", "kvtide.core", "kvtide.core.eviction", "kvtide.copy", "kvtide.engine"]
OPTIONAL = {"kvtide.vllm"}
"""Packages that need more than kvtide's own dependencies."""


def packages() -> list[str]:
    """Return every package of kvtide that says what it exports, without importing optional ones."""
    found = [module.name for module in pkgutil.walk_packages(kvtide.__path__, "kvtide.") if module.ispkg]
    names = [name for name in found if not any(name.startswith(optional) for optional in OPTIONAL)]
    return sorted({*MUST_EXPORT, *(name for name in names if hasattr(importlib.import_module(name), "__all__"))})


def in_order(names: list[str]) -> list[str]:
    """Sort as ruff does: constants, then classes, then the rest."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


@pytest.mark.parametrize("name", packages())
def test_exports_are_sorted_and_named_once(name: str) -> None:
    exported = list(importlib.import_module(name).__all__)
    assert exported == in_order(exported)
    assert len(exported) == len(set(exported))


@pytest.mark.parametrize("name", packages())
def test_every_exported_name_is_there(name: str) -> None:
    package = importlib.import_module(name)
    missing = [exported for exported in package.__all__ if not hasattr(package, exported)]
    assert not missing


@pytest.mark.parametrize("name", packages())
def test_no_public_name_is_left_out(name: str) -> None:
    package = importlib.import_module(name)
    public = {
        attribute
        for attribute, value in vars(package).items()
        if not attribute.startswith("_") and attribute != "annotations" and not is_submodule(value, name)
    }
    assert public <= set(package.__all__)


def is_submodule(value: object, package: str) -> bool:
    return isinstance(value, ModuleType) and value.__name__.startswith(f"{package}.")


def test_every_error_can_be_caught_by_its_name_at_the_top() -> None:
    public = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    assert set(public) <= set(kvtide.__all__)
    assert all(getattr(kvtide, name) is value for name, value in public.items())


def test_every_error_is_a_kvtide_error_and_is_drawn_in_the_tree() -> None:
    for name, value in vars(errors).items():
        if isinstance(value, type):
            assert issubclass(value, errors.KVTideError)
            assert name in (errors.__doc__ or "")


def test_the_errors_have_nothing_beside_them_but_how_they_are_described() -> None:
    others = {name for name, value in vars(errors).items() if not name.startswith("_") and not isinstance(value, type)}
    assert others == {"annotations", "describe", "traceback", "without_secrets"}


def test_what_the_top_exports_is_what_the_core_and_the_errors_export() -> None:
    from_core = {name for name in kvtide.__all__ if name in kvtide.core.__all__}
    from_errors = set(vars(errors))
    assert set(kvtide.__all__) - from_core - from_errors == {"__version__"}
    assert all(getattr(kvtide, name) is getattr(kvtide.core, name) for name in from_core)

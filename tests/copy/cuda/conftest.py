"""Tests of lists that C issues need a compiler."""

from __future__ import annotations

import pytest

from kvtide.copy.cuda.issuing import compiler
from tests.not_tested import lacks

COMPILE = ("test_issuing", "test_proof", "test_torch_commands")


@pytest.fixture(autouse=True)
def _compiler(request: pytest.FixtureRequest) -> None:
    if request.module.__name__.rpartition(".")[2] in COMPILE and compiler() is None:
        lacks("a C compiler", "`make test-core` brings one where there is an apt-get, else install gcc")

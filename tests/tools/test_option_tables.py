"""The tables of options in the docs are what the models say."""

from __future__ import annotations

import pytest
from tools.option_tables import DOCS, TABLES, with_tables

from kvtide.schema import option_rows


@pytest.mark.parametrize("page", sorted({page for page, _ in TABLES.values()}))
def test_tables_are_as_the_models_have_them(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert with_tables(page, text) == text, "run tools/option_tables.py"
    assert with_tables(page, text.replace("| default |", "| standard |")) == text


def test_every_option_has_a_meaning() -> None:
    for _, model in TABLES.values():
        for name, _, meaning in option_rows(model):
            assert len(meaning) > 5, name
            assert "(default" not in meaning

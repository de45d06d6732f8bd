"""Options as models: read by name, refused with all that is wrong, and no secret in any error."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field

from kvtide.redaction import without_secrets
from kvtide.schema import FLAG, SIZE, OptionsModel, Read, meaning, one_of, read_model, text, whole


class Fruit(OptionsModel):
    """Some options."""

    size: Annotated[int, SIZE] = Field(description="how large")
    kind: Annotated[str, one_of("apple", "pear")] = Field(default="apple", description="which")
    count: Annotated[int, whole(1, 9, " in a basket")] = Field(default=1, description="how many")
    ripe: Annotated[bool | None, FLAG] = Field(default=None, description="whether")
    name: Annotated[str | None, text("a name")] = Field(default=None, description="what it is called")


A_SIZE = 'a size in bytes above 0, such as 4096 or "64GiB"; units are KiB to PiB, and KB to PB'


def wrong(**given: object) -> list[str]:
    found, errors = read_model(Fruit, given, "fruits[3].")
    assert (found is None) == bool(errors)
    return [str(error) for error in errors]


def test_what_is_left_out_has_a_default() -> None:
    found, errors = read_model(Fruit, {"size": "1KiB"})
    assert not errors
    assert found == Fruit(size=1024)
    assert (found.kind, found.count, found.ripe, found.name) == ("apple", 1, None, None)


def test_all_that_is_wrong_is_told_at_once_by_full_names() -> None:
    assert wrong(size="much", knid="pear", kind="plum", count=10, ripe="yes", name="") == [
        "fruits[3].knid='pear': expected a known option; did you mean \"kind\"? known are size, kind, count, "
        "ripe, name",
        f"fruits[3].size='much': expected {A_SIZE}",
        "fruits[3].kind='plum': expected one of apple, pear",
        "fruits[3].count=10: expected at most 9 in a basket",
        "fruits[3].ripe='yes': expected true or false, without quotes",
        "fruits[3].name='': expected a name",
    ]


def test_what_is_needed_and_missing_is_told_like_what_is_wrong() -> None:
    assert wrong() == [f"fruits[3].size: expected {A_SIZE}"]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("passwort", "hunter2", "***"),
        ("pasword", "hunter2", "***"),
        ("secret", 5, "***"),
        ("urll", "valkey://u:hunter2@cache", "valkey://u:***@cache"),
        ("sise", "1GiB", "1GiB"),
        ("keyboard_layout", "de", "***"),
    ],
)
def test_unknown_options_are_shown_without_secrets(name: str, value: object, shown: object) -> None:
    assert without_secrets(name, value) == shown
    assert "hunter2" not in wrong(size=1, **{name: value})[0]


def test_a_mistake_of_ours_is_not_told_as_one_of_the_user() -> None:
    class Broken(OptionsModel):
        size: Annotated[int, Read(lambda *_: 1 // 0, {})] = 1

    with pytest.raises(ZeroDivisionError):
        read_model(Broken, {"size": 2})


def test_the_json_schema_has_names_bounds_and_meanings() -> None:
    schema = Fruit.model_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["size"]
    assert schema["properties"]["count"] == {
        "default": 1,
        "description": "how many",
        "maximum": 9,
        "minimum": 1,
        "title": "Count",
        "type": "integer",
    }
    assert schema["properties"]["kind"]["enum"] == ["apple", "pear"]


def test_a_meaning_says_no_default() -> None:
    assert meaning("a: this (default); b: that (default: 5)") == "a: this; b: that"

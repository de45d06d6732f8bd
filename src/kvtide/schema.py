"""Options as models: one description of which the check, its errors, the tables of the docs and a JSON schema come.

A field's type says how a value is read (`Annotated[int, SIZE]`), and its `Field` what it means. Errors name the option
as it is written, what was given, without secrets, and what is expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from kvtide.errors import ConfigError
from kvtide.options import parse_choice, parse_count, parse_flag, parse_size, unknown


class OptionsModel(BaseModel):
    """What people can write, and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=OptionsModel)


@dataclass(frozen=True)
class Read:
    """How a value is read: by a function that takes a name for errors and the value, and raises `ConfigError`."""

    parse: Callable[[str, Any], object]
    json_schema: Mapping[str, object]
    keep: bool = False
    """Take the value as it was written, once it is known to be good: who needs it reads it again."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Call the function."""
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Say what programs may write."""
        return dict(self.json_schema)

    def _read(self, value: object) -> object:
        found = self.parse("", value)
        return value if self.keep else found


_SIZES: Mapping[str, object] = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtTpP]?[bB]?|[kKmMgGtTpP][iI][bB]?)\s*$"},
    ]
}
SIZE = Read(parse_size, _SIZES)
WRITTEN_SIZE = Read(parse_size, _SIZES, keep=True)
FLAG = Read(parse_flag, {"type": "boolean"})


def whole(minimum: int = 1, maximum: int | None = None, why: str = "") -> Read:
    """Read a whole number. `why` is said of the maximum."""

    def parse(option: str, value: object) -> int:
        number = parse_count(option, value, minimum=minimum)
        if maximum is not None and number > maximum:
            raise ConfigError(option, number, f"at most {maximum}{why}")
        return number

    bounds = {"minimum": minimum} if maximum is None else {"minimum": minimum, "maximum": maximum}
    return Read(parse, {"type": "integer", **bounds})


def one_of(*choices: str) -> Read:
    """Read one of a few words."""
    return Read(lambda option, value: parse_choice(option, value, choices), {"enum": list(choices)})


def text(expected: str) -> Read:
    """Read a text that is not empty."""

    def parse(option: str, value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ConfigError(option, value, expected)
        return value

    return Read(parse, {"type": "string", "minLength": 1})


def read_model(
    model: type[Model], given: Mapping[str, object], prefix: str = "", context: Mapping[str, object] | None = None
) -> tuple[Model | None, list[ConfigError]]:
    """Return the options, or everything that is wrong with them. `prefix` stands before names in errors."""
    fields = model.model_fields
    errors = [
        ConfigError(prefix + name, value, unknown("option", name, fields))
        for name, value in given.items()
        if name not in fields
    ]
    needed = {name: None for name, field in fields.items() if field.is_required()}
    known = {name: value for name, value in given.items() if name in fields}
    try:
        found = model.model_validate({**needed, **known}, context=dict(context or {}))
    except ValidationError as refused:
        return None, errors + [_as_config_error(dict(error), prefix, known) for error in refused.errors()]
    return (None if errors else found), errors


def _as_config_error(error: dict[str, Any], prefix: str, given: Mapping[str, object]) -> ConfigError:
    why = error["ctx"]["error"]
    assert isinstance(why, ConfigError), why
    name = why.option.removeprefix(prefix) or ".".join(map(str, error["loc"]))
    written = given.get(name)
    as_written = isinstance(written, str) and isinstance(why.value, int)  # "900TB", not how many bytes that is
    return ConfigError(prefix + name, written if as_written else why.value, why.expected)


def option_rows(model: type[OptionsModel]) -> list[tuple[str, str, str]]:
    """Return what the tables of the docs have: name, default and meaning of each option."""
    return [(name, _default_text(field), str(field.description)) for name, field in model.model_fields.items()]


def _default_text(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "default_text" in extra:
        return str(extra["default_text"])
    if field.is_required() or field.default is None:
        return ""
    return f'`"{field.default}"`' if isinstance(field.default, str) else str(field.default)


def meaning(described: str) -> str:
    """Return the meaning of an option out of a text that also says its default."""
    return re.sub(r" \(default(?::[^)]*)?\)", "", described)

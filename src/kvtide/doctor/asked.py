"""What `--config` says: JSON as people hand it to vLLM, or a file with it. Nothing that it names is looked at here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from kvtide.errors import ConfigError
from kvtide.json_option import object_of
from kvtide.vllm.options import ConnectorOptions

CONNECTOR, SEVERAL, MODULE, ROLE = "KVTideConnector", "MultiConnector", "kvtide.vllm", "kv_both"
_EXTRA = "kv_connector_extra_config"
_EXAMPLE = '{"host": "64GiB", "tiers": []}'


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody asks for, unread."""

    given: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)
    """The options of kvtide."""
    named_module: bool = False
    """Whether kvtide's module is named, so that vLLM needs no plug-in to find it."""
    problems: tuple[ConfigError, ...] = ()
    """Why vLLM itself would refuse it."""


def read_asked(config: str | None, option: str = "--config") -> Asked:
    """Read `--config`, or what else `option` names. A `ConfigError` if it is neither JSON nor a file with it."""
    if config is None:
        return Asked()
    outer = object_of(option, config, _EXAMPLE)
    if not {"kv_connector", _EXTRA} & outer.keys():
        return Asked(given=True, extra=outer)
    ours = _among_several(outer) or outer  # the whole of --kv-transfer-config
    extra = ours.get(_EXTRA) or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(_EXTRA, type(extra).__name__, "an object with options, such as host")
    problems = [*_not_as_needed(ours), *_misplaced(ours)]
    return Asked(True, extra, ours.get("kv_connector_module_path") == MODULE, tuple(problems))


def _not_as_needed(outer: Mapping[str, object]) -> Iterator[ConfigError]:
    """Find what vLLM needs to take kvtide, and is left out or something else."""
    for name, value in (("kv_connector", CONNECTOR), ("kv_role", ROLE)):
        if outer.get(name) is None:
            yield ConfigError(name, None, f'"{value}", and it is left out: add "{name}": "{value}"')
        elif outer[name] != value:
            yield ConfigError(name, outer[name], f'"{value}"')


def _misplaced(outer: Mapping[str, object]) -> Iterator[ConfigError]:
    """Find options of kvtide beside those of vLLM, which vLLM refuses."""
    for name in outer:
        if name in ConnectorOptions.model_fields:
            yield ConfigError(name, "…", f"to be inside {_EXTRA}, as all options of kvtide")
        elif name != _EXTRA and get_close_matches(name, [_EXTRA], cutoff=0.9):
            yield ConfigError(name, "…", f'the name "{_EXTRA}"')


def _among_several(outer: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return kvtide's part of the configuration of several connectors. None: there is none."""
    extra = outer.get(_EXTRA)
    if outer.get("kv_connector") != SEVERAL or not isinstance(extra, Mapping):
        return None
    inner = extra.get("connectors")
    parts = [part for part in inner if isinstance(part, Mapping)] if isinstance(inner, list) else []
    return next((part for part in parts if part.get("kv_connector") == CONNECTOR), None)

"""vLLM's resolved configuration as part of a namespace: all of it but what `settings_left_out.py` names (F23)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from hashlib import blake2b
from typing import Any

from kvtide.errors import ConfigError
from kvtide.vllm import settings_left_out

LOOKED_AT: Mapping[str, tuple[str, settings_left_out.Reasons]] = {
    "model_config": ("model", settings_left_out.MODEL),
    "cache_config": ("cache", settings_left_out.CACHE),
    "parallel_config": ("parallel", settings_left_out.PARALLEL),
    "attention_config": ("attention", settings_left_out.ATTENTION),
    "lora_config": ("lora", settings_left_out.LORA),
    "load_config": ("load", settings_left_out.LOAD),
    "kernel_config": ("kernel", settings_left_out.KERNEL),
    "mamba_config": ("mamba", settings_left_out.MAMBA),
    "diffusion_config": ("diffusion", {}),
}
"""Parts of `VllmConfig`: what their fields are called in a namespace, and which of them are left out."""

APART = ("speculative_config", "additional_config")
"""Parts of `VllmConfig` that are looked at in their own ways."""

TEXT_CHARS_MAX = (120, 48)
"""Texts of settings are cut, and end in a digest: to the first of these lengths if all settings together are short
enough then, else to the second."""
SETTINGS_CHARS_MAX = 6_000
"""A manifest is small: a tier on a disk keeps some of them within its overhead."""


def settings_of(vllm_config: Any) -> tuple[tuple[str, str], ...]:
    """Return names and values of all settings that the bytes of a block depend on, in order."""
    found: dict[str, str] = {}
    for attribute, (name, reasons) in LOOKED_AT.items():
        found.update(_settings(name, getattr(vllm_config, attribute, None), reasons))
    if (more := getattr(vllm_config, "additional_config", None)) is not None:
        found["additional"] = digest(text_of(more))  # whatever people wrote: maybe a secret
    if draft_model_of(vllm_config) is not None:
        found.update(_settings("speculative", vllm_config.speculative_config, settings_left_out.SPECULATIVE))
    return _cut(found)


def draft_model_of(vllm_config: Any) -> Any:
    """Return the configuration of a model that guesses tokens with layers of its own. None: there is no such model."""
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    return None if draft is getattr(speculative, "target_model_config", None) else draft


def _settings(prefix: str, config: Any, reasons: settings_left_out.Reasons) -> Iterator[tuple[str, str]]:
    """Yield the settings of one configuration that are not None. Older versions of vLLM have fewer of them."""
    if config is None:
        return
    left_out = settings_left_out.fields_of(reasons)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        if field.name in left_out or value is None:
            continue
        if field.name == "multimodal_config":
            yield from _settings(f"{prefix}.multimodal", value, settings_left_out.MULTIMODAL)
        elif field.name == "draft_model_config":
            yield f"{prefix}.draft.model", f"{value.model} of {value.dtype}"
            yield from _settings(f"{prefix}.draft", value, settings_left_out.MODEL)
        elif field.name == "hf_config":
            yield from ((f"{prefix}.hf.{name}", text_of(part)) for name, part in _hf_parts(value).items())
        elif field.name == "hf_text_config":
            yield f"{prefix}.hf_text", digest(text_of(_hf_parts(value)))
        else:
            yield f"{prefix}.{field.name}", text_of(value)


def _hf_parts(config: Any) -> dict[str, Any]:
    """Return what a model's `config.json` says, with everything that overrides it. Where it lies does not matter."""
    parts = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    return {str(name): value for name, value in parts.items() if value is not None and name != "_name_or_path"}


def _cut(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Keep people able to read what differs, and a manifest small."""
    for chars_max in TEXT_CHARS_MAX:
        cut = {name: shortened(text, chars_max) for name, text in sorted(settings.items())}
        if sum(len(name) + len(text) for name, text in cut.items()) <= SETTINGS_CHARS_MAX:
            return tuple(cut.items())
    return (("settings", digest(text_of(settings))),)


def shortened(text: str, chars_max: int) -> str:
    """Return a text of bounded length that is another one for every other text."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 18]}… {digest(text)}"


def digest(text: str) -> str:
    """Return 16 characters that stand for a text."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def text_of(value: Any) -> str:
    """Return the text of a setting: the same in every process."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, sort_keys=True, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"settings that can be written down, which keys of persistent blocks depend on ({error})"
        raise ConfigError("tiers", type(value).__qualname__, what) from error


def _plain(value: Any) -> Any:
    """Return what JSON has no word for in words that it has, without addresses and without the order of sets."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Set):
        return sorted(map(text_of, value))
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    if callable(getattr(value, "to_dict", None)):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return {"type": type(value).__qualname__, **vars(value)} if hasattr(value, "__dict__") else str(value)

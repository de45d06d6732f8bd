"""The namespace of a persistent key: every setting of vLLM changes it, or is named with the reason why not (F23)."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm.config import DiffusionConfig, LoRAConfig, MultiModalConfig, VllmConfig
from vllm.config.multimodal import VideoDummyOptions
from vllm.engine.arg_utils import EngineArgs

from kvtide.copy import HostArena
from kvtide.copy.slot_places import SlotPlaces
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.share import ALL
from kvtide.errors import ConfigError
from kvtide.tiers import Namespace, parse_tiers
from kvtide.tiers.disk.layout import OVERHEAD_BYTES
from kvtide.tiers.disk.manifests import MANIFEST_BYTES_MAX, MANIFESTS_MAX
from kvtide.vllm import settings_left_out, tiers
from kvtide.vllm.settings import APART, LOOKED_AT, settings_of, shortened, text_of
from tests.vllm.counted import COUNTED
from tests.vllm.llm import engine
from tests.vllm.models import write_eagle_head
from tests.vllm.sources import source
from tests.vllm.test_versions import VERSIONS

FILES = {
    "ModelConfig": "model",
    "CacheConfig": "cache",
    "ParallelConfig": "parallel",
    "AttentionConfig": "attention",
    "LoRAConfig": "lora",
    "LoadConfig": "load",
    "KernelConfig": "kernel",
    "MambaConfig": "mamba",
    "MultiModalConfig": "multimodal",
    "SpeculativeConfig": "speculative",
    "DiffusionConfig": "diffusion",
    "VllmConfig": "vllm",
}
OTHERS = {
    "multimodal_config": MultiModalConfig(),
    "limit_per_prompt": {"video": VideoDummyOptions(count=3)},
}
"""Values of fields whose kinds cannot be guessed from what they are."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What an engine with a tier has made its namespace from."""

    config: VllmConfig
    kv_cache: Any
    block_bytes: int
    layout: str

    def namespace(self, config: VllmConfig | None = None) -> Namespace:
        return tiers.namespace_of(config or self.config, self.kv_cache, self.block_bytes, self.layout)


@pytest.fixture(scope="module")
def seen(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    found: list[Seen] = []
    made = tiers.namespace_of

    def spy(*arguments: Any) -> Namespace:
        found.append(Seen(*arguments))
        return made(*arguments)

    disk = {"type": "disk", "path": str(tmp_path_factory.mktemp("tier")), "size": "64MiB"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "namespace_of", spy)
        with engine(llama, options={"tiers": [disk]}):
            yield found[0]


@pytest.fixture(scope="module")
def guessing(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> VllmConfig:
    head = write_eagle_head(tmp_path_factory.mktemp("models") / "eagle")
    return configured(llama, speculative_config={"method": "eagle", "model": str(head), "num_speculative_tokens": 2})


def configured(model: Path, **arguments: Any) -> VllmConfig:
    return EngineArgs(str(model), skip_tokenizer_init=True, dtype="float32", **arguments).create_engine_config()


def changed(config: Any, name: str, value: Any) -> Any:
    """Return a copy with another value of one field, whatever the class thinks of it."""
    other = copy.copy(config)
    object.__setattr__(other, name, value)
    return other


def another(name: str, value: Any) -> Any:  # noqa: PLR0911 - one line for each kind of value
    """Return a value that a field could have instead."""
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, Enum):
        return next(each for each in type(value) if each is not value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, torch.dtype):
        return torch.float16
    if isinstance(value, list | tuple):
        return [*value, "other"]
    if isinstance(value, Mapping):
        return {**value, "other": 1}
    if hasattr(value, "to_dict"):
        return changed(value, "rope_parameters", {"rope_theta": 1.0})
    if dataclasses.is_dataclass(value):
        field = dataclasses.fields(value)[0].name
        return changed(value, field, another(field, getattr(value, field)))
    return f"{value}-other"


def fields_of(version: str, owner: str) -> set[str]:
    """Return the names of a configuration's fields, read from the source of a version."""
    for node in ast.parse(source(version, f"config/{FILES[owner]}.py")).body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            lines = [
                each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
            return {
                each.target.id
                for each in lines
                if isinstance(each.target, ast.Name)
                and not {"InitVar", "ClassVar"} & set(ast.unparse(each.annotation).split("["))
            }
    return set()


@pytest.mark.parametrize("owner", COUNTED)
def test_f23_every_setting_of_every_version_counts_or_has_a_reason_not_to(owner: str) -> None:
    reasons, counted = COUNTED[owner]
    left_out = settings_left_out.fields_of(reasons)
    assert not left_out & set(counted)
    known: set[str] = set()
    for version in VERSIONS:
        fields = fields_of(version, owner)
        assert not fields - left_out - set(counted), f"{version}: decide whether the bytes of a block depend on these"
        known |= fields
    assert known == left_out | set(counted), "names that no version has"


def test_f23_every_part_of_the_configuration_is_looked_at_or_has_a_reason_not_to_be() -> None:
    decided = {*LOOKED_AT, *APART, *settings_left_out.fields_of(settings_left_out.WHOLE)}
    known = set().union(*(fields_of(version, "VllmConfig") for version in VERSIONS))
    assert known == decided
    assert {field.name for field in dataclasses.fields(VllmConfig)} <= decided


def base_of(owner: str, seen: Seen, guessing: VllmConfig) -> tuple[VllmConfig, Any, Any]:
    """Return a configuration, the part of it that is of a class, and what puts another such part into it."""
    if owner == "SpeculativeConfig":
        return guessing, guessing.speculative_config, lambda part: changed(guessing, "speculative_config", part)
    if owner == "MultiModalConfig":
        model = seen.config.model_config

        def put(part: Any) -> VllmConfig:
            return changed(seen.config, "model_config", changed(model, "multimodal_config", part))

        return put(MultiModalConfig()), MultiModalConfig(), put
    missing = {"LoRAConfig": LoRAConfig(), "DiffusionConfig": DiffusionConfig(canvas_length=8)}
    name = next(name for name, (short, _) in LOOKED_AT.items() if owner.lower() == f"{short}config")
    part = missing.get(owner) or getattr(seen.config, name)
    return changed(seen.config, name, part), part, lambda part: changed(seen.config, name, part)


@pytest.mark.parametrize("owner", COUNTED)
def test_f23_each_setting_changes_the_namespace_unless_it_has_a_reason_not_to(
    owner: str, seen: Seen, guessing: VllmConfig
) -> None:
    config, part, put = base_of(owner, seen, guessing)
    before = settings_of(config)
    assert settings_of(put(copy.copy(part))) == before
    left_out = settings_left_out.fields_of(COUNTED[owner][0])
    for field in dataclasses.fields(part):
        now = settings_of(put(changed(part, field.name, another(field.name, getattr(part, field.name, None)))))
        assert (now == before) == (field.name in left_out), field.name


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("model_config", "model", "elsewhere"),
        ("model_config", "revision", "another"),
        ("model_config", "dtype", torch.bfloat16),
        ("parallel_config", "world_size", 2),
        ("cache_config", "prefix_caching_hash_algo", "sha256_cbor"),
        ("load_config", "load_format", "gguf"),
    ],
)
def test_f23_settings_that_are_named_in_other_parts_change_the_namespace(
    seen: Seen, part: str, name: str, value: Any
) -> None:
    other = changed(seen.config, part, changed(getattr(seen.config, part), name, value))
    assert seen.namespace(other).digest != seen.namespace().digest


def test_f23_a_seed_counts_where_weights_are_drawn_from_it(seen: Seen) -> None:
    def digest(load_format: str, seed: int) -> bytes:
        config = changed(seen.config, "load_config", changed(seen.config.load_config, "load_format", load_format))
        return seen.namespace(changed(config, "model_config", changed(config.model_config, "seed", seed))).digest

    assert digest("dummy", 1) != digest("dummy", 2)
    assert digest("auto", 1) == digest("auto", 2)


@pytest.mark.parametrize("way", ["hf_overrides", "callable", "hf_config_path", "config.json"])
def test_f23_another_model_configuration_changes_the_namespace_however_it_is_given(
    llama: Path, tmp_path: Path, way: str
) -> None:
    ropes = {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}

    def override(config: Any) -> Any:
        config.update(ropes)
        return config

    model = tmp_path / "model"
    model.mkdir()
    for file in llama.iterdir():
        (model / file.name).symlink_to(file)
    before = settings_of(configured(model))
    content = json.dumps({**json.loads((llama / "config.json").read_text()), **ropes})
    (tmp_path / "config.json").write_text(content)
    if way == "config.json":
        (model / "config.json").unlink()
        (model / "config.json").write_text(content)
    ways: dict[str, dict[str, Any]] = {
        "hf_overrides": {"hf_overrides": ropes},
        "callable": {"hf_overrides": override},
        "hf_config_path": {"hf_config_path": str(tmp_path)},
        "config.json": {},
    }
    now = settings_of(configured(model, **ways[way]))
    assert {name for name, _ in set(now) ^ set(before)} == {"model.hf.rope_parameters", "model.hf_text"}


def test_what_the_bytes_do_not_depend_on_leaves_a_restart_warm(llama: Path) -> None:
    before = settings_of(configured(llama))
    now = settings_of(
        configured(
            llama,
            max_num_seqs=7,
            max_num_batched_tokens=4096,
            gpu_memory_utilization=0.5,
            num_gpu_blocks_override=99,
            served_model_name="another",
            enforce_eager=True,
            seed=5,
            data_parallel_size=2,
            data_parallel_rpc_port=12345,
            distributed_timeout_seconds=99,
            speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        )
    )
    assert now == before


def test_f23_a_draft_model_counts_with_its_weights(seen: Seen, guessing: VllmConfig, tmp_path: Path) -> None:
    draft = guessing.speculative_config.draft_model_config
    head = write_eagle_head(tmp_path / "eagle")
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    trained = changed(guessing.speculative_config, "draft_model_config", changed(draft, "model", str(head)))
    assert "speculative.draft.model" in dict(settings_of(guessing))
    parts = [seen.namespace(config).weights for config in (guessing, changed(guessing, "speculative_config", trained))]
    assert len({part.partition("draft: ")[2] for part in parts}) == 2


def test_f23_the_namespace_says_what_each_layer_really_uses(seen: Seen) -> None:
    namespace = seen.namespace()
    assert namespace.attention.endswith("CPU_ATTN")
    assert dict(namespace.settings)["cache.kv_cache_layout"] == seen.config.cache_config.kv_cache_layout != ""
    assert "torch.float32 1 by block" in namespace.layout
    nothing_loaded = changed(seen.config.compilation_config, "static_forward_context", {})
    assert "CPU_ATTN" not in seen.namespace(changed(seen.config, "compilation_config", nothing_loaded)).attention


def test_secrets_are_in_no_manifest(seen: Seen) -> None:
    model = changed(seen.config.model_config, "hf_token", "hf_secret")
    config = changed(changed(seen.config, "model_config", model), "additional_config", {"token": "my_secret"})
    assert seen.namespace(config).digest != seen.namespace().digest
    assert "secret" not in seen.namespace(config).to_json()


def test_a_manifest_stays_small_whatever_a_model_says(seen: Seen) -> None:
    assert len(seen.namespace().to_json()) < 8192
    assert (MANIFESTS_MAX + 1) * MANIFEST_BYTES_MAX < OVERHEAD_BYTES
    large = copy.copy(seen.config.model_config.hf_config)
    for number in range(500):
        setattr(large, f"setting_{number}", "long " * 100)
    digests = set()
    for last in ("a", "b"):
        large.setting_499 = "long " * 100 + last
        model = changed(seen.config.model_config, "hf_config", large)
        namespace = seen.namespace(changed(seen.config, "model_config", model))
        assert len(namespace.to_json()) < MANIFEST_BYTES_MAX
        digests.add(namespace.digest)
    assert len(digests) == 2


def test_texts_of_settings_are_the_same_in_every_process() -> None:
    assert text_of({"b": {"y", "x"}, "a": torch.float16}) == '{"a": "torch.float16", "b": ["x", "y"]}'
    assert text_of(configured) == '"tests.vllm.test_namespace.configured"'
    assert shortened("a" * 99, 99) == "a" * 99
    assert len(shortened("a" * 100, 99)) == 99
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="written down"):
        text_of(endless)


def test_f23_scales_that_each_process_measures_are_refused_beside_tiers(seen: Seen) -> None:
    configs = parse_tiers([{"type": "null"}])
    cache = changed(seen.config.cache_config, "calculate_kv_scales", True)
    with pytest.raises(ConfigError, match="calculate_kv_scales"):
        tiers.tiers_opener(configs, changed(seen.config, "cache_config", cache), seen.kv_cache, seen.block_bytes)


def test_f23_packed_blocks_plain_ones_and_those_of_another_version_of_the_format_never_meet(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Namespace] = []
    monkeypatch.setattr(tiers, "open_stack", lambda _, namespace, *args, **how: opened.append(namespace))
    open_tiers = tiers.tiers_opener(parse_tiers([{"type": "null"}]), seen.config, seen.kv_cache, seen.block_bytes)
    memory = np.zeros((4, 1552), np.uint8)
    places = SlotPlaces(HostArena(4, 1552), UnpackedRows(HostArena(1, 2048), 4))
    open_tiers(0, memory, lambda: seen.layout, ALL, None)
    open_tiers(0, memory, lambda: seen.layout, ALL, places)
    monkeypatch.setattr(tiers, "NAMESPACE_PART", ("kvtide.packing", "bf16/2"))
    open_tiers(0, memory, lambda: seen.layout, ALL, places)
    assert len({namespace.digest for namespace in opened}) == len(opened) == 3

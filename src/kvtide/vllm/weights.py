"""Which weights a model has: a revision, a digest of its files, how they are loaded (F23)."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HUB_CACHE

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.json", "*.py")
"""Also those that say how weights are quantized, how pictures are prepared, and what is computed (remote code)."""
OTHER_FILES = ("tokenizer", "special_tokens", "added_tokens", "vocab", "merges", "generation_config", "chat_template")
"""What names of files begin with that tell how tokens are made from text and text from tokens: keys are of tokens."""
SAMPLES, SAMPLE_BYTES = 256, 4096
"""Of each file of weights so many pieces are looked at: all of it would take minutes at every start."""


def weights_part(model: Any, load: Any) -> str:
    """Return what the weights are: a revision where there is one, a fingerprint of the files, how they are loaded."""
    parts = [f"quantization {model.quantization}", f"load {getattr(load, 'load_format', 'auto')}"]
    commit = getattr(model.hf_config, "_commit_hash", None)
    if getattr(model, "hf_config_path", None):  # then that commit is not the weights'
        commit = f"{_hub_commit(model, load)}, configuration {commit}"
    if commit:
        parts.append(f"commit {commit}")
    if model.revision and model.revision != commit:
        parts.append(f"revision {model.revision}")
    places = [Path(str(place)) for place in (model.model, getattr(model, "model_weights", None)) if place]
    parts += [f"files {fingerprint(place)}" for place in places if place.exists()]
    if "dummy" in str(getattr(load, "load_format", "")):
        parts.append(f"seed {model.seed}")
    return ", ".join(parts)


def _hub_commit(model: Any, load: Any) -> str | None:
    """Return which commit of a model was downloaded last, as its cache says. None: it did not come from a hub."""
    cache = Path(getattr(load, "download_dir", None) or HF_HUB_CACHE)
    ref = cache / f"models--{str(model.model).replace('/', '--')}" / "refs" / (model.revision or "main")
    return ref.read_text().strip() if ref.is_file() else None


def fingerprint(place: Path) -> str:
    """Return a digest of the files of a model, from their names, their sizes and pieces of their content.

    Times are not looked at: copies of the same files on two servers must come to the same digest. A model that is one
    file (GGUF) is that file, whatever it is called.
    """
    digest = blake2b(digest_size=16)
    if place.is_file():
        _sample(digest, place)
        return digest.hexdigest()
    found = {path for pattern in WEIGHT_FILES for path in place.glob(pattern)}
    for path in sorted(path for path in found if not path.name.startswith(OTHER_FILES)):
        digest.update(f"{path.name} ".encode())
        _sample(digest, path)
    return digest.hexdigest()


def _sample(digest: blake2b, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{size} ".encode())
    with path.open("rb") as file:
        if size <= SAMPLES * SAMPLE_BYTES:
            digest.update(file.read())
            return
        for sample in range(SAMPLES):
            file.seek(sample * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))

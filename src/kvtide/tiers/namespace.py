"""All that the bytes of a block depend on, beside the tokens that the key stands for (F23)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b

from kvtide.tiers.record import FORMAT_VERSION

DIGEST_BYTES = 16
_CRYPTOGRAPHIC = ("sha256", "sha256_cbor")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Named parts. Blocks made under another namespace are never read, whatever their keys.

    Parts are texts and numbers that are the same in every process that computes the same bytes.
    """

    model: str
    """Name or path of the model."""
    weights: str
    """Version of the weights: revision, and whatever else changes them (quantization, adapters)."""
    dtype: str
    """Of the KV cache."""
    layout: str
    """How a slot's bytes are laid out: order of layers, heads, keys and values, strides."""
    groups: str
    """Attention groups, their layers and block sizes."""
    block_bytes: int
    """Bytes of one block on one rank."""
    attention: str
    """The attention backend, where layout or values depend on it."""
    hashing: str
    """How keys are computed: see `hashing_part`."""
    world: int = 1
    """Ranks that share one block."""
    rank: int = 0
    format: int = FORMAT_VERSION
    """kvtide's own."""
    settings: tuple[tuple[str, str], ...] = ()
    """What else the engine was told that the bytes depend on: names with a dot, and values."""

    def for_rank(self, rank: int) -> Namespace:
        """Return the namespace of one rank's part of each block."""
        return replace(self, rank=rank)

    def with_setting(self, setting: tuple[str, str]) -> Namespace:
        """Return the namespace of blocks that depend on one more setting."""
        return replace(self, settings=(*self.settings, setting))

    @property
    def digest(self) -> bytes:
        """What records carry: 16 bytes that differ when any part does."""
        return blake2b(self.to_json().encode(), digest_size=DIGEST_BYTES).digest()

    def manifest(self) -> dict[str, str | int]:
        """Return the parts by name: what a store keeps, so that people can read what it holds."""
        parts = asdict(self)
        settings = parts.pop("settings")
        return {**parts, **dict(settings)}

    def to_json(self) -> str:
        """Return the manifest as text; the same parts give the same text."""
        return json.dumps(self.manifest(), sort_keys=True, indent=1)

    def differences(self, stored: Mapping[str, object]) -> list[str]:
        """Say which parts of a stored manifest differ: `dtype: stored "float16", now "bfloat16"`."""
        now = self.manifest()
        return [
            f"{name}: stored {_shown(stored, name)}, now {_shown(now, name)}"
            for name in [*now, *(name for name in stored if name not in now)]
            if stored.get(name) != now.get(name)
        ]

    def tell_differences(self, where: str, differences: Sequence[str]) -> None:
        """Say in the log why blocks that are there are not read, if there are any."""
        if differences:
            _log.warning(
                "kvtide: the blocks of %s in %s were made under another namespace and are not read: %s",
                self.model,
                where,
                "; ".join(differences),
            )


OTHER_FORMATS = tuple(number for number in range(1, FORMAT_VERSION + 9) if number != FORMAT_VERSION)
"""Those that other versions of kvtide may have written. Shared stores keep each format under names of its own."""


def tell_other_formats(where: str, formats: Sequence[int], remove: str) -> None:
    """Say in the log that a shared store has blocks of other versions, if any. `remove`: how to be rid of them."""
    if formats:
        _log.warning(
            "kvtide: %s has blocks of format %s, and this version of kvtide has %d: they are not read, and this engine "
            "starts without them, beside them; %s",
            where,
            ", ".join(map(str, formats)),
            FORMAT_VERSION,
            remove,
        )


def tell_unreadable(where: str, what: str) -> None:
    """Say in the log that a note about a namespace is damaged. Blocks say themselves whose they are."""
    _log.warning(
        "kvtide: %s in %s cannot be read and is not relied on: blocks are found by their own names, and verified",
        what,
        where,
    )


def _shown(parts: Mapping[str, object], name: str) -> str:
    return json.dumps(parts[name], default=str) if name in parts else "nothing"


def manifest_from_json(text: str | bytes) -> dict[str, object] | None:
    """Read a stored manifest. None: it is not one."""
    try:
        parts = json.loads(text)
    except ValueError:
        return None
    return parts if isinstance(parts, dict) else None


def hashing_part(algorithm: str, seed: str | None, python_version: tuple[int, int]) -> str:
    """Return the part `hashing` of a namespace.

    The seed changes all keys, so it is named by a digest. Algorithms that serialise with pickle (those without
    "cbor" in their names) promise the same hashes only on the same version of Python.
    """
    parts = [algorithm]
    if seed is not None:
        parts.append(f"seed {blake2b(seed.encode(), digest_size=4).hexdigest()}")
    if "cbor" not in algorithm:
        parts.append("python {}.{}".format(*python_version))
    return ", ".join(parts)


def unstable_keys(algorithm: str, seed: str | None, *, has_fixed_seed: bool) -> str | None:
    """Say why keys are not the same in the next process, and what to do about it. None: they are (F23).

    `algorithm`: the engine's prefix hash, `seed`: the environment variable PYTHONHASHSEED, or None if it is not set.
    `has_fixed_seed`: whether this version of the engine begins cryptographic hashes with a fixed seed; older ones draw
    one for each process. A persistent tier whose keys nobody computes again fills the disk and never hits.
    """
    fix = "set PYTHONHASHSEED to the same number for all servers that share blocks, for example PYTHONHASHSEED=0"
    if algorithm in _CRYPTOGRAPHIC:
        if seed is not None or has_fixed_seed:
            return None
        return f"the engine starts its {algorithm} hashes from a random number in each process: {fix}"
    if seed is not None and seed != "random":
        return None
    return (
        f"the prefix hash {algorithm} is random in each process: {fix}, "
        f"or choose a hash that is not (--prefix-caching-hash-algo {_CRYPTOGRAPHIC[1]})"
    )

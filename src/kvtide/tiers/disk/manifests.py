"""What people can read about a rank's folder: under which namespaces its segments were made (F23)."""

from __future__ import annotations

import re
from pathlib import Path

from kvtide.tiers.disk.file_io import replace_file
from kvtide.tiers.namespace import Namespace, manifest_from_json

MANIFESTS_MAX = 4
MANIFEST_BYTES_MAX = 12 << 10
"""What an engine may write into one: all of them, and one that is being replaced, are within the overhead of a rank."""
_NAME = re.compile(r"namespace-([0-9a-f]{32})\.json")


def read_manifests(folder: Path) -> dict[bytes, dict[str, object]]:
    """Return the stored manifests by digest, the one that was used last at the end."""
    found = {}
    for path in sorted(folder.iterdir(), key=_time):
        match = _NAME.fullmatch(path.name)
        manifest = manifest_from_json(path.read_bytes()) if match is not None else None
        if match is not None and manifest is not None:
            found[bytes.fromhex(match[1])] = manifest
    return found


def note_namespace(folder: Path, namespace: Namespace, held: set[bytes]) -> list[str]:
    """Store the manifest of the namespace that is used from now on, and remove those of which nothing is left.

    `held` are the digests of the namespaces that have blocks here. Returns in what the namespace that was used last
    differs, if its blocks are here and this one's are not.
    """
    stored = read_manifests(folder)
    differences: list[str] = []
    others = [digest for digest in stored if digest in held and digest != namespace.digest]
    if namespace.digest not in held and others:
        differences = namespace.differences(stored[others[-1]])
    for digest in stored:
        if digest != namespace.digest and digest not in others[-(MANIFESTS_MAX - 1) :]:
            _path(folder, digest).unlink(missing_ok=True)
    replace_file(_path(folder, namespace.digest), namespace.to_json().encode())
    return differences


def _path(folder: Path, digest: bytes) -> Path:
    return folder / f"namespace-{digest.hex()}.json"


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

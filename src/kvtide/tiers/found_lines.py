"""What `kvtide tier` has found at a place, in lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from kvtide.units import how_many, size_text


def counted(found: dict[str, object]) -> str:
    """Say how many records there are, and how large they are."""
    records, size = found.get("records"), found.get("bytes")
    said = how_many(records, "record") if isinstance(records, int) else "records that cannot be counted"
    said += f", {size_text(size)}" if isinstance(size, int) else ""
    others = [int(str(other["disk_bytes"])) for other in _dicts(found.get("other_formats"))]
    return f"{said} and {size_text(sum(others))} of other formats" if others else said


def described(found: dict[str, object], *, said: Sequence[str] = ()) -> Iterator[str]:
    """Say it in lines: what every kind of place has, then each namespace with its parts, and each store of a node.

    `said`: what is the same for all stores, and stands above them.
    """
    nested = ("namespaces", "ranks", "stores", "other_formats")
    for name, value in found.items():
        if name not in (*nested, *said):
            yield f"{name}: {_shown(name, value)}"
    for rank in _dicts(found.get("ranks")):
        yield from _rank(rank)
    alike = _alike(_dicts(found.get("namespaces")))
    for namespaces in alike:
        yield "namespace" + ("" if len(alike) == 1 else f": {_sum_of(namespaces)}")
        for name, value in _manifest(namespaces[0]).items():
            if name == "rank":
                yield f"  rank: {', '.join(str(_manifest(each)['rank']) for each in namespaces)}"
            elif found.get(name) != value:
                yield f"  {name}: {value}"
    for other in _dicts(found.get("other_formats")):
        taken = size_text(int(str(other["disk_bytes"])))
        yield f"{other['place']}: {taken} of format {other['format'] or 'unknown'}, which this version does not read"
    for store in _dicts(found.get("stores")):
        yield ""
        yield from described(store, said=("type",))


def _rank(rank: dict[str, object]) -> Iterator[str]:
    used_by = rank.get("used_by")
    who = "in use by nobody" if used_by is None else f"in use by process {used_by or '?'}"
    taken = size_text(int(str(rank["disk_bytes"])))
    segments = how_many(int(str(rank["segments"])), "segment")
    yield f"rank {rank['rank']} of {rank['world']}: {segments}, {taken}, {who}"
    if rank.get("unreadable_segments"):
        yield f"  segments that cannot be read: {rank['unreadable_segments']}"


def _shown(name: str, value: object) -> object:
    if isinstance(value, dict):  # what was cleared
        return counted(value)
    if value is None:
        return "not known"
    return size_text(value) if name == "bytes" and isinstance(value, int) else value


def _alike(namespaces: Sequence[dict[str, object]]) -> list[list[dict[str, object]]]:
    """Put those together that differ only in their rank."""
    found: dict[object, list[dict[str, object]]] = {}
    for number, namespace in enumerate(namespaces):
        manifest = _manifest(namespace)
        rest = {name: value for name, value in manifest.items() if name != "rank"}
        # A damaged manifest, or somebody else's, may not say a rank.
        alike = json.dumps(rest, sort_keys=True) if rest and "rank" in manifest else number
        found.setdefault(alike, []).append(namespace)
    return list(found.values())


def _manifest(namespace: dict[str, object]) -> dict[str, object]:
    manifest = namespace.get("manifest")
    return manifest if isinstance(manifest, dict) else {}


def _sum_of(namespaces: Sequence[dict[str, object]]) -> str:
    records, size = (sum(int(str(each[name])) for each in namespaces) for name in ("records", "bytes"))
    return counted({"records": records, "bytes": size})


def _dicts(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

"""Blocks in a Mooncake store that several engines share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from kvtide.tiers.backend import Backend, BackendDown
from kvtide.tiers.base import HIT, MISS, Item, KeyResult, TierKey, Verdict
from kvtide.tiers.batches import batches
from kvtide.tiers.mooncake.batching import Arrived, get_in_pieces, get_together, put_in_pieces, put_together
from kvtide.tiers.mooncake.manifests import note_manifest
from kvtide.tiers.mooncake.names import Names
from kvtide.tiers.mooncake.native import EXISTS, NO_ROOM, NOT_FOUND, check, connect, disconnect
from kvtide.tiers.mooncake.options import MooncakeConfig
from kvtide.tiers.mooncake.staging import REGION_BYTES, Staging, address_of
from kvtide.tiers.mooncake.transfers import Transfers
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.record import HEADER_BYTES, Reading, Sealer

TOGETHER_BYTES_MAX = 128 << 10
"""Larger blocks are carried in pieces: see `batching`."""
_NO_ROOM = KeyResult(Verdict.THROTTLED, "the store has no room")
_IRREPLACEABLE = (Reading.CORRUPT, Reading.WRONG_SECRET)
"""Records that no put could replace, because values do not change in this store: they are removed."""


class MooncakeBackend(Backend):
    """Speaks to a store by one client that all threads share.

    Every answer is a hint: a client that died takes its segment along, and the master goes on naming what was in it
    for a while. What does not arrive, or does not verify, is a miss.
    """

    def __init__(self, config: MooncakeConfig, namespace: Namespace) -> None:
        self._config = config
        self._namespace = namespace
        self._names = Names(namespace.digest)
        self.sealer = Sealer(namespace.digest, config.cipher(), where=f"mooncake at {config.place}")
        self._staging = Staging()
        self._connecting = threading.Lock()
        self._store: Any = None
        self._transfers: Transfers | None = None
        self._is_up = False
        self._registered: list[memoryview] = []

    def join(self) -> None:
        """Connect, and say in the log if the store has other namespaces of this model."""
        with self._connecting:
            if self._store is None:
                store = connect(self._config)
                for memory in self._registered:
                    store.register_buffer(address_of(memory), memory.nbytes)
                note_manifest(store, self._staging.region(store), self._namespace, self._config.place)
                self._transfers = Transfers(store)
                self._store, self._is_up = store, True

    def register(self, memory: memoryview) -> None:
        """Tell the client of memory that blocks will come from and go to: it need not ask each time then."""
        with self._connecting:
            self._registered.append(memory)
            if self._store is not None:
                self._store.register_buffer(address_of(memory), memory.nbytes)

    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        """Ask the master which keys it knows."""
        store = self._use()
        found = self._checked(store.batch_is_exist([self._names.record(key) for key in keys]))
        return [HIT if status == 1 else MISS for status in found]

    def put(self, items: Sequence[Item]) -> list[KeyResult]:
        """Write records. One that is there already is left: values do not change in this store."""
        store = self._use()
        results: list[KeyResult] = []
        for batch in _batches(items):
            results += [_written(status) for status in self._checked(self._put(store, batch))]
        return results

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        """Read records and verify them."""
        store = self._use()
        results: list[KeyResult] = []
        for batch in _batches(items):
            readings = self._get(store, batch)
            bad = [item.key for item, reading in zip(batch, readings, strict=True) if reading in _IRREPLACEABLE]
            if bad:
                store.batch_remove([self._names.record(key) for key in bad], True)
            results += [reading.result if isinstance(reading, Reading) else reading for reading in readings]
        return results

    def clear(self) -> KeyResult:
        """Have the master forget all records of this namespace: every engine asks it, so none finds any."""
        count = self._checked([self._use().remove_by_regex(self._names.records(), True)])[0]
        return HIT if count >= 0 else KeyResult(Verdict.FAILED, f"clear: status {count}")

    def close(self) -> None:
        """Take leave of the store."""
        with self._connecting:
            store, self._store = self._store, None
            transfers, self._transfers = self._transfers, None
        if store is None or transfers is None:
            return
        transfers.stop()
        if self._is_up:
            self._staging.unregister(store)
            for memory in self._registered:
                store.unregister_buffer(address_of(memory))
        disconnect(store, is_up=self._is_up)

    # ------------------------------------------------------------------ the client

    def _use(self) -> Any:
        if self._store is None:
            self.join()
        return self._store

    def _checked(self, statuses: Sequence[int]) -> Sequence[int]:
        """Return what a call brought, unless that is the master's silence."""
        try:
            for status in statuses:
                check(status)
        except BackendDown:
            self._is_up = False
            raise
        self._is_up = True
        return statuses

    # ------------------------------------------------------------------ records

    def _put(self, store: Any, batch: Sequence[Item]) -> Sequence[int]:
        put = put_together if _is_small(batch[0]) else put_in_pieces
        names = [self._names.record(item.key) for item in batch]
        assert self._transfers is not None
        return put(self._transfers, self._staging.region(store), names, batch, self.sealer.seal)

    def _get(self, store: Any, batch: Sequence[Item]) -> list[Reading | KeyResult]:
        get = get_together if _is_small(batch[0]) else get_in_pieces
        names = [self._names.record(item.key) for item in batch]
        bodies = [item.buffer.cast("B") for item in batch]
        assert self._transfers is not None
        arrived = get(self._transfers, self._staging.region(store), names, bodies)
        self._checked([value.status for value in arrived])
        return [self._open(item.key, value, body) for item, value, body in zip(batch, arrived, bodies, strict=True)]

    def _open(self, key: TierKey, value: Arrived, into: memoryview) -> Reading | KeyResult:
        if value.status == NOT_FOUND:
            return MISS
        if value.status < 0:
            return KeyResult(Verdict.MISS, f"its bytes did not arrive (status {value.status})")
        if value.status != HEADER_BYTES + into.nbytes:
            return self.sealer.open(key, value.header, b"", into)
        return self.sealer.open(key, value.header, value.body, into)


def _written(status: int) -> KeyResult:
    if status in (0, EXISTS):
        return HIT
    return _NO_ROOM if status == NO_ROOM else KeyResult(Verdict.FAILED, f"put: status {status}")


def _is_small(item: Item) -> bool:
    return item.buffer.nbytes <= TOGETHER_BYTES_MAX


def _batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Cut items into runs that are carried the same way, and whose part in the region fits there."""
    for _, run in groupby(items, _is_small):
        yield from batches(list(run), bytes_max=REGION_BYTES, size_of=_staged_bytes)


def _staged_bytes(item: Item) -> int:
    return HEADER_BYTES + (item.buffer.nbytes if _is_small(item) else 0)

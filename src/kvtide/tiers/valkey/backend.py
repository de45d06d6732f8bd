"""Blocks in a Valkey or Redis server that several engines share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from valkey.exceptions import ResponseError

from kvtide.tiers.backend import Backend, BackendDown
from kvtide.tiers.base import HIT, MISS, Item, KeyResult, TierKey, Verdict
from kvtide.tiers.batches import batches
from kvtide.tiers.breaker import Breaker
from kvtide.tiers.log_once import LogOnce
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.record import HEADER_BYTES, Reading, Sealer
from kvtide.tiers.thread_priority import in_no_hurry
from kvtide.tiers.valkey.connection import Connection, Connections, code_of, good
from kvtide.tiers.valkey.generation import Generation
from kvtide.tiers.valkey.manifests import note_manifest
from kvtide.tiers.valkey.names import Names
from kvtide.tiers.valkey.options import ValkeyConfig
from kvtide.tiers.valkey.protocol import Command, Reply, Value
from kvtide.tiers.valkey.sweep import Sweep

GROUP_BYTES = 1 << 20
"""Values asked for in one command. The server sends nothing before it has put a whole reply together."""
GROUPS_AHEAD = 2
"""Commands that are under way while a reply is read, so that the server always has something to do."""
SEAL_BYTES = 1 << 20
"""Values that are sealed before they are sent: few enough to be still in the processor's cache."""
PUT_BYTES = 8 << 20
"""Values sent before their replies are awaited."""
KEYS_PER_TRIP = 1000
_SWEEP_PAGES = 32
"""Pages that a clear does by itself."""

_CLEARED = KeyResult(Verdict.MISS, "the store was cleared meanwhile")
_NOT_WRITING = KeyResult(Verdict.THROTTLED, "not tried: the server refused to write a moment ago")
_TOO_LARGE = KeyResult(Verdict.FAILED, "the record is larger than max_value")

_log = logging.getLogger(__name__)


class ValkeyBackend(Backend):
    """Speaks to one server, by one connection per calling thread.

    Every call reads the name of the generation along with what it is about, in the same round trip; where it is
    another than expected, someone cleared the namespace, and nothing of the answer counts.
    """

    def __init__(self, config: ValkeyConfig, namespace: Namespace) -> None:
        self._where = str(config.access.address)
        self._connections = Connections(config.access, config.deadline_ms / 1000)
        self._namespace = namespace
        self._names = Names(namespace.digest)
        self.sealer = Sealer(namespace.digest, config.cipher(), where=self._where)
        self._expiry = (b"EX", b"%d" % config.ttl_s) if config.ttl_s else ()
        self._body_bytes_max = config.max_value - HEADER_BYTES
        self._sweep = Sweep(self._names)
        self._generation = Generation(self._names)
        # A full server, or a replica, still reads: this switches writing off alone.
        self._writing = Breaker(time.monotonic, failures_max=1)
        self._refusals = LogOnce(_log, f"{self._where} refuses to write", meanwhile="it is still read")

    def join(self) -> None:
        """Learn which generation counts, and say in the log if the server has other namespaces of this model."""
        with self._connections.one() as connection:
            self._join(connection)

    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        """Ask which keys are there, in one round trip per thousand."""
        results: list[KeyResult] = []
        with self._connections.one() as connection:
            generation = self._generation.current or self._join(connection)
            for some in batches(keys, count_max=KEYS_PER_TRIP):
                names = [self._names.record(generation, key) for key in some]
                *found, seen = connection.ask([*((b"EXISTS", name) for name in names), self._generation.question])
                still = self._generation.still(generation, seen)
                results += [(HIT if good(there) else MISS) if still else _CLEARED for there in found]
            self._generation.mend(connection)
        return results

    def put(self, items: Sequence[Item]) -> list[KeyResult]:
        """Write records, over whatever is there: a record that went bad is mended that way."""
        fits = [item.buffer.nbytes <= self._body_bytes_max for item in items]
        results: list[KeyResult] = []
        with self._connections.one() as connection, in_no_hurry():
            generation = self._generation.current or self._join(connection)
            for batch in _by_bytes([item for item, fit in zip(items, fits, strict=True) if fit], PUT_BYTES):
                put = self._put if self._writing.allows() else self._put_nothing
                results += put(connection, generation, batch)
            self._generation.mend(connection)
            if self._generation.current == generation:  # or what is swept away would be what counts now
                self._sweep.step(connection, generation)
        done = iter(results)
        return [next(done) if fit else _TOO_LARGE for fit in fits]

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        """Read records into the caller's memory, and verify them there."""
        with self._connections.one() as connection:
            generation = self._generation.current or self._join(connection)
            readings = self._get(connection, generation, list(_by_bytes(items, GROUP_BYTES)))
            bad = [item.key for item, reading in zip(items, readings, strict=True) if reading is Reading.CORRUPT]
            self._generation.mend(connection)
            if bad:  # or every lookup would find it again
                connection.ask([(b"UNLINK", *(self._names.record(generation, key) for key in bad))])
        return [reading.result if isinstance(reading, Reading) else reading for reading in readings]

    def clear(self) -> KeyResult:
        """Name another generation, then begin to give the memory back."""
        with self._connections.one() as connection:
            generation = self._generation.begin(connection)
            self._sweep.begin()
            for _ in range(_SWEEP_PAGES):
                if not self._sweep.step(connection, generation):
                    break
        return HIT

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    # ------------------------------------------------------------------ generations

    def _join(self, connection: Connection) -> bytes:
        generation = self._generation.join(connection)
        note_manifest(connection, self._names, self._namespace, self._where)
        return generation

    # ------------------------------------------------------------------ records

    def _put(self, connection: Connection, generation: bytes, batch: Sequence[Item]) -> list[KeyResult]:
        names = [self._names.record(generation, item.key) for item in batch]
        try:
            replies, seen = self._send(connection, names, batch)
        except BackendDown:
            self._writing.succeeded()  # it did not refuse: that it is away is for the tier's own breaker to count
            raise
        results = self._written(connection, replies)
        if self._generation.still(generation, seen):
            return results
        connection.ask([(b"UNLINK", *names)])  # the sweep may have been there already
        return [_CLEARED] * len(batch)

    def _put_nothing(self, connection: Connection, generation: bytes, batch: Sequence[Item]) -> list[KeyResult]:
        """Ask at least whether the server is there: a call that asked nothing would count as one that it answered."""
        (seen,) = connection.ask([self._generation.question])
        self._generation.still(generation, seen)
        return [_NOT_WRITING] * len(batch)

    def _send(self, connection: Connection, names: Sequence[bytes], batch: Sequence[Item]) -> tuple[list[Reply], Reply]:
        """Send records, sealing some while others are on their way, and return the replies."""
        with connection:
            name = iter(names)
            for run in _by_bytes(batch, SEAL_BYTES):
                connection.send((b"SET", next(name), self.sealer.seal(*item), *self._expiry) for item in run)
            connection.send([self._generation.question])
            return [connection.reply() for _ in batch], connection.reply()

    def _written(self, connection: Connection, replies: Sequence[object]) -> list[KeyResult]:
        refusals = [reply for reply in replies if isinstance(reply, ResponseError)]
        if not refusals:
            self._writing.succeeded()
            self._refusals.over()
            return [HIT] * len(replies)
        self._writing.failed()
        self._refusals.began(str(refusals[0]))
        if code_of(refusals[0]) == "READONLY":
            connection.close()  # what was the primary may be found at the same address by connecting anew
        return [KeyResult(Verdict.FAILED, str(reply)) if isinstance(reply, ResponseError) else HIT for reply in replies]

    def _get(
        self, connection: Connection, generation: bytes, groups: Sequence[Sequence[Item]]
    ) -> list[Reading | KeyResult]:
        readings: list[Reading | KeyResult] = []
        sent = 0
        with connection:
            for index, group in enumerate(groups):
                ahead = groups[sent : index + 1 + GROUPS_AHEAD]
                connection.send(self._wanted(generation, each) for each in ahead)
                sent += len(ahead)
                readings += self._read_group(connection, generation, group)
        return readings

    def _wanted(self, generation: bytes, group: Sequence[Item]) -> Command:
        return (b"MGET", *(self._names.record(generation, item.key) for item in group), *self._generation.names)

    def _read_group(
        self, connection: Connection, generation: bytes, group: Sequence[Item]
    ) -> list[Reading | KeyResult]:
        """Read values and verify them while they are still in the processor's cache."""
        connection.more_time()
        bodies = [item.buffer.cast("B") for item in group]
        values, copies = connection.array(HEADER_BYTES, bodies, [generation] * len(self._generation.names))
        if not self._generation.still(generation, copies):
            return [_CLEARED] * len(group)
        return [self._verified(item.key, body, value) for item, body, value in zip(group, bodies, values, strict=True)]

    def _verified(self, key: TierKey, body: memoryview, value: Value | ResponseError | None) -> Reading | KeyResult:
        if value is None:
            return MISS
        value = good(value)
        is_whole = value.length == HEADER_BYTES + len(body)
        return self.sealer.open(key, value.head, body if is_whole else b"", body)


def _by_bytes(items: Sequence[Item], bytes_max: int) -> Iterator[Sequence[Item]]:
    return batches(items, bytes_max=bytes_max, count_max=KEYS_PER_TRIP, size_of=lambda item: item.buffer.nbytes)

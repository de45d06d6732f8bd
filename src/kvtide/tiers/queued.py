"""Makes a tier of a backend: a bounded queue, and a bounded pool of threads that wait in the caller's place."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from kvtide.errors import ConfigError, describe
from kvtide.options import parse_count
from kvtide.tiers.backend import Backend, BackendDown
from kvtide.tiers.base import CallResult, Item, KeyResult, Tier, TierKey, TierStats, Verdict
from kvtide.tiers.breaker import Switch
from kvtide.tiers.call_queue import Call, CallName, CallQueue, Part, Work, parts_of, size_of
from kvtide.tiers.meter import Meter

_log = logging.getLogger(__name__)
AT_ONCE_MAX = 1024
"""Keys that are looked up at once, where that is possible: they take a millisecond, which others may wait for."""


class QueuedTier(Tier):
    """Runs a backend's blocking calls in `threads` threads.

    At most `calls_max` reads (lookups and gets) and as many writes are under way or not yet polled, and at most
    `bytes_max` of memory of each; a single larger call is taken when there is no other. Calls of more than
    `part_bytes` are shared by several threads.

    While the breaker is open, calls are answered as throttled at once, and the backend is left alone.

    Threads are daemons: a backend that never returns must not keep the program from ending.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        threads: int,
        calls_max: int = 1024,
        bytes_max: int = 1 << 30,
        part_bytes: int = 8 << 20,
        breaker: Switch | None = None,
        name: str = "tier",
    ) -> None:
        for option, value in (("threads", threads), ("calls_max", calls_max), ("bytes_max", bytes_max)):
            parse_count(option, value)
        self._backend = backend
        self._calls_max, self._bytes_max, self._part_bytes = calls_max, bytes_max, part_bytes
        self._breaker = breaker or Switch()
        self._name = name
        self._lock = threading.Lock()
        self._work_came = threading.Condition(self._lock)
        self._call_ended = threading.Condition(self._lock)
        # All that follows is read and written under the lock.
        self._queue = CallQueue(threads)
        self._calls = {False: 0, True: 0}
        """Calls that were taken and not yet polled, reads and writes."""
        self._bytes = {False: 0, True: 0}
        self._unended = 0
        self._ended: list[Call] = []
        self._meter = Meter()
        self._closed = self._backend_closed = False
        self._complained = False
        self._tell: Callable[[], None] = lambda: None
        self._threads: list[threading.Thread] = []
        try:
            for index in range(threads):
                self._start_thread(index)
        except RuntimeError as error:
            self.close()
            raise ConfigError("threads", threads, f"as many as the system can start ({error})") from error

    # ------------------------------------------------------------------ calls

    def lookup(self, ticket: int, keys: Sequence[TierKey]) -> bool:
        """Look up at once, if the backend can, and otherwise queue it. See `Tier.lookup`."""
        return self._take(
            "lookup", ticket, tuple(keys), at_once=self._backend.looks_up_in_memory and len(keys) <= AT_ONCE_MAX
        )

    def put(self, ticket: int, items: Sequence[Item]) -> bool:
        """Queue a put. See `Tier.put`."""
        return self._take("put", ticket, tuple(items))

    def get(self, ticket: int, items: Sequence[Item]) -> bool:
        """Queue a get. See `Tier.get`."""
        return self._take("get", ticket, tuple(items))

    def clear(self, ticket: int) -> bool:
        """Queue a clear. Puts that have not begun are throttled: what they bring would be cleared. See `Tier.clear`."""
        return self._take("clear", ticket, ())

    def register(self, memory: memoryview) -> None:
        """Tell the backend. See `Tier.register`."""
        self._backend.register(memory)

    def tell(self, answered: Callable[[], None]) -> None:
        """Tell whenever a call has ended. See `Tier.tell`."""
        self._tell = answered

    def poll(self) -> list[CallResult]:
        """Return the answers since the last call. See `Tier.poll`."""
        with self._lock:
            self._shed()
            ended, self._ended = self._ended, []
            for call in ended:
                self._calls[call.writes] -= 1
        return [call.result() for call in ended]

    def wait(self, timeout_s: float) -> bool:
        """Block until there is an answer or nothing is under way. See `Tier.wait`."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            while self._unended and not self._ended:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                # A breaker opens by itself when a call takes too long, and tells nobody.
                self._call_ended.wait(min(left_s, _BREAKER_CHECK_S))
                self._shed()
            return True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop the threads after the calls they are at, then close the backend. See `Tier.close`."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            self._closed = True
            self._give_up(self._queue.take_all(), KeyResult(Verdict.FAILED, "the tier was closed before it began"))
            self._work_came.notify_all()
            self._call_ended.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        if not self._backend_closed:
            self._backend_closed = True
            try:
                self._backend.close()
            except Exception:
                _log.warning("kvtide: closing %s failed", self._name, exc_info=True)
        return True

    def stats(self) -> TierStats:
        """Return what was done so far and what is held."""
        with self._lock:
            stats = self._meter.snapshot()
        try:
            stats.corrupt_records = self._backend.corrupt_records()
            stats.wrong_secret_records = self._backend.wrong_secret_records()
            stats.bytes_used, stats.bytes_budget = self._backend.bytes_used(), self._backend.bytes_budget()
        except Exception as error:
            self._complain(error)
        stats.breaker = self._breaker.state
        return stats

    # ------------------------------------------------------------------ taking and ending

    def _take(self, name: CallName, ticket: int, work: Sequence[Work], *, at_once: bool = False) -> bool:
        """Queue a call, or make it here and now. False: it is not taken."""
        call = Call(name, ticket, work, time.monotonic(), 0 if name == "lookup" else sum(map(size_of, work)))
        with self._lock:
            full = self._bytes[call.writes] and self._bytes[call.writes] + call.size > self._bytes_max
            if self._closed or full or self._calls[call.writes] >= self._calls_max:
                return False
            self._calls[call.writes] += 1
            self._bytes[call.writes] += call.size
            self._unended += 1
            if not at_once:
                self._start(call)
                self._wake_a_thread()
                return True
        call.parts_left = 1
        self._do(Part(call, 0, len(call.results)))
        return True

    def _start(self, call: Call) -> None:
        parts = parts_of(call, self._part_bytes)
        call.parts_left = len(parts)
        if call.name == "clear":
            self._give_up(self._queue.take_puts(), KeyResult(Verdict.THROTTLED, "the tier was cleared meanwhile"))
        if not call.results:
            self._end_parts(call, len(parts))
        elif self._breaker.state == "open":
            self._give_up(parts, _SWITCHED_OFF)
        else:
            for part in parts:
                self._queue.add(part)

    def _shed(self) -> None:
        """Answer what has not begun when the breaker is open: threads may be stuck for long."""
        if self._breaker.state == "open":
            self._give_up(self._queue.take_all(), _SWITCHED_OFF)

    def _give_up(self, parts: Sequence[Part], result: KeyResult) -> None:
        for part in parts:
            part.call.results[part.first : part.last] = [result] * (part.last - part.first)
            self._end_parts(part.call, 1)

    def _end_parts(self, call: Call, count: int) -> None:
        call.parts_left -= count
        if call.parts_left:
            return
        self._meter.count(call, time.monotonic() - call.begin_s)
        self._unended -= 1
        self._bytes[call.writes] -= call.size
        call.work = ()  # the memory is the caller's again
        self._ended.append(call)
        self._call_ended.notify_all()
        self._tell()

    # ------------------------------------------------------------------ threads

    def _start_thread(self, index: int) -> None:
        thread = threading.Thread(target=self._run, name=f"kvtide-{self._name}-{index}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self) -> None:
        """Work until the tier is closed. Nothing that a backend raises ends the thread (F15)."""
        while (part := self._next_part()) is not None:
            self._do(part)

    def _do(self, part: Part) -> None:
        results = self._results_of(part)
        with self._lock:
            part.call.results[part.first : part.last] = results
            self._queue.ended(part)
            self._end_parts(part.call, 1)

    def _next_part(self) -> Part | None:
        with self._lock:
            while not self._closed:
                part = self._queue.next()
                if part is not None:
                    self._wake_a_thread()
                    return part
                self._work_came.wait()
        return None

    def _wake_a_thread(self) -> None:
        """Wake a thread if there is something to do for it. It wakes the next one in turn."""
        if self._queue.ready():
            self._work_came.notify()

    def _results_of(self, part: Part) -> Sequence[KeyResult]:
        count = part.last - part.first
        try:
            if not self._breaker.allows():
                return [_SWITCHED_OFF] * count
        except Exception as error:
            return [self._failure(error)] * count
        try:
            with self._breaker.watch(part.call.name):
                results = self._ask_backend(part)
            if len(results) != count:
                raise RuntimeError(f"{len(results)} results for {count} keys")
        except BaseException as error:  # even SystemExit: there is nobody behind the frame of a thread to tell
            self._breaker.failed()
            if not isinstance(error, Exception) and threading.current_thread() not in self._threads:
                raise  # the caller's own, who is told by a signal to end
            return [self._failure(error)] * count
        self._breaker.succeeded()
        return results

    def _ask_backend(self, part: Part) -> Sequence[KeyResult]:
        name, work = part.call.name, part.call.work[part.first : part.last]
        if name == "clear":
            return [self._backend.clear()]
        ask: Callable[..., list[KeyResult]] = getattr(self._backend, name)
        return ask(work)

    def _failure(self, error: BaseException) -> KeyResult:
        if not isinstance(error, BackendDown):
            self._complain(error)
        return KeyResult(Verdict.FAILED, describe(error))

    def _complain(self, error: BaseException) -> None:
        with self._lock:
            first, self._complained = not self._complained, True
        if first:
            _log.error(
                "kvtide: %s raised, which it never should; further ones are not logged", self._name, exc_info=error
            )


_BREAKER_CHECK_S = 0.02
_SWITCHED_OFF = KeyResult(Verdict.THROTTLED, "the tier is switched off for a while, after failures")

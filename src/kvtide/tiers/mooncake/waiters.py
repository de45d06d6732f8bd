"""Threads that wait for the client in others' place, and give way to everyone meanwhile.

The client (0.3.13) does not sleep until bytes have arrived: it asks whether they have, over and over. That fills a
core, and where cores are few it takes them from the threads that move the bytes, the client's own and the store's, and
from those that verify. A thread of low priority asks just as often when nobody else wants the core, and only then.

Where others want all cores all the time, it hardly asks at all: on two busy cores a get of 8 MiB took 135 ms instead of
15. So a thread that has starved says so, and for a while calls are made by those who want them, one at a time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple

NICENESS = 15
"""A few percent of a core against one thread of usual priority. On two cores gets of 64 KiB were slower at 10, and
all of them at 4."""

STARVED_S = 0.04
STARVED_SHARE = 0.06
STARVED_CALLS = 4
"""So many calls in a row that took longer than this, with less than this share of a core, have starved. Beside threads
that verify they have 15%, but now and then one has less; beside others that never rest all have 3%."""
RESPITE_S = 5.0
RESPITE_MAX_S = 60.0
"""How long calls are made at usual priority then. Twice as long each time that it happens again."""

_STOP_TIMEOUT_S = 1.0


class _Call(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: Future[Any]


class Waiters:
    """Makes calls, `count` at a time. The threads are daemons, for a call may never return."""

    def __init__(self, name: str, count: int) -> None:
        self._starved_calls = 0
        self._starved_until_s = 0.0
        self._respite_s = RESPITE_S
        self._turn = threading.Lock()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True) for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns, or raise what it raises."""
        if time.monotonic() < self._starved_until_s:
            with self._turn:
                return function(*arguments)
        future: Future[Any] = Future()
        self._calls.put(_Call(function, arguments, future))
        return future.result()

    def stop(self) -> None:
        """End the threads, when all calls have returned. None may come after this."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        thread = threading.get_native_id()  # for Linux, a priority is one thread's, not the process's
        niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))  # less would need a privilege
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
        while (call := self._calls.get()) is not None:
            begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
            try:
                call.future.set_result(call.function(*call.arguments))
            except BaseException as error:  # whatever it is, it is the caller's
                call.future.set_exception(error)
            del call  # or it would hold on to its arguments until the next one comes
            self._note(time.monotonic() - begin_s, time.thread_time() - begin_cpu_s)

    def _note(self, spent_s: float, cpu_s: float) -> None:
        """Take note of a call. Threads may do so at once: then a call is counted too few, or a respite is renewed."""
        if spent_s <= STARVED_S or cpu_s >= STARVED_SHARE * spent_s:
            self._starved_calls = 0
            if time.monotonic() > self._starved_until_s + RESPITE_MAX_S:
                self._respite_s = RESPITE_S
            return
        self._starved_calls += 1
        if self._starved_calls >= STARVED_CALLS:
            self._starved_calls = 0
            self._starved_until_s = time.monotonic() + self._respite_s
            self._respite_s = min(2 * self._respite_s, RESPITE_MAX_S)

"""An index in the engine's own process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvtide.core.below.below import Below
from kvtide.core.chain import Chain
from kvtide.core.config import OffloadConfig
from kvtide.core.events import EventStream
from kvtide.core.groups import NULL_BLOCK, Key
from kvtide.core.host_pool import HostPool
from kvtide.core.index.index import RUN_BLOCKS_MAX, Fill, Grant, Granted, Index, Want
from kvtide.core.ledger import Entry, Ledger
from kvtide.core.match import Lease, Match, Matcher
from kvtide.core.messages import Errand, Pool
from kvtide.core.metrics import Metrics
from kvtide.core.reasons import NotStored
from kvtide.core.requests import Request


class LocalIndex(Index):
    """The host pool, and what is below it."""

    def __init__(
        self,
        config: OffloadConfig,
        ledger: Ledger,
        events: EventStream,
        metrics: Metrics,
        slots_ready: int | None,
        *,
        is_shared: bool = False,
    ) -> None:
        """`is_shared`: what is being written may be another engine's, and says nothing about slots to come."""
        groups = config.geometry.groups
        self.ledger = ledger
        self._is_shared = is_shared
        self.host = HostPool(config.slots, groups, config.policy, events, metrics, slots_ready=slots_ready)
        self.below = Below(config, self.host, ledger, metrics)
        self._matcher = Matcher(groups, self.host)
        self.block_tokens = [group.block_tokens for group in groups]

    @property
    def pool(self) -> Pool | None:
        """See `Index`. The ranks have made their memory themselves."""
        return None

    @property
    def answer_steps(self) -> int:
        """See `Index`."""
        return 0

    # ------------------------------------------------------------------ loading

    def look_up(self, request: Request, device_tokens: int, num_tokens: int, pays: Callable[[int], bool]) -> Match:
        """See `Index`."""
        match = self._matcher.match(request.id, request.keys, device_tokens, num_tokens, pays)
        return self.below.matched(request, match)

    def lease(self, match: Match) -> Lease:
        """See `Index`."""
        lease = Lease(match.slots)
        self.host.pin(lease.slots)
        return lease

    def release(self, lease: Lease) -> None:
        """See `Index`."""
        self.host.unpin(lease.slots)

    def release_part(self, lease: Lease, keep: list[int]) -> None:
        """See `Index`."""
        self.host.pin(keep)
        self.host.unpin(lease.slots)
        lease.slots = keep

    def narrow(self, request: Request, match: Match, boundary: int) -> Match | None:
        """See `Index`."""
        pieces = self._matcher.pieces(request.keys, match.device_tokens, boundary)
        return None if pieces is None else replace(match, tokens=boundary - match.device_tokens, pieces=pieces)

    def wait(self, request: Request, match: Match) -> None:
        """See `Index`."""
        self.below.reserved(request, match)

    def use(self, match: Match) -> None:
        """See `Index`."""
        self.host.tick()
        for group, first, slots in match.pieces:
            self.host.use(group, slots, (first + 1) * self.block_tokens[group])
            self.below.used(slots)

    def drop(self, request: Request) -> None:
        """See `Index`."""
        self.below.drop(request)

    # ------------------------------------------------------------------ storing

    def reserve(self, wants: Sequence[Want], room_blocks: int, granted: Granted) -> None:
        """See `Index`."""
        if any(want.touch for want in wants):
            self.host.tick()
        grants = []
        for want in wants:
            grants.append(self._reserve(want, room_blocks))
            room_blocks -= grants[-1].blocks
        granted(grants)

    def _reserve(self, want: Want, room_blocks: int) -> Grant:
        chain, grant = want.chain, Grant(reached=len(want.chain))
        if not want.touch and NULL_BLOCK not in chain.blocks and self.host.has_none(chain.group, chain.keys):
            self._grant(chain, 0, want, grant, room_blocks)  # the usual case: all new
            return grant
        for first, last in self._lacking(want, grant):
            self._grant(self._part(chain, first, last), first, want, grant, room_blocks)
        return grant

    def settle(self, chains: Sequence[Chain], *, kept: bool) -> bool:
        """See `Index`."""
        self.host.tick()
        for chain in chains:
            if kept:
                self.host.commit(chain)
                self.below.stored(chain)
            else:
                self.host.abandon(chain)
            if chain.anchor is not None:
                self.host.unpin([chain.anchor])
        return True

    def cut(self, run: Chain, keep_blocks: int) -> Chain:
        """See `Index`."""
        rest = self._part(run, keep_blocks, len(run))
        rest.slots = run.slots[keep_blocks:]
        self.host.abandon(rest)
        del run.keys[keep_blocks:], run.blocks[keep_blocks:], run.slots[keep_blocks:]
        return rest

    def is_over(self, held: Lease | Chain) -> bool:
        """See `Index`."""
        return False

    def has(self, group: int, key: Key) -> bool:
        """See `Index`."""
        return self.host.has(group, key)

    def is_arriving(self, group: int, key: Key) -> bool:
        """See `Index`."""
        return self.host.has(group, key) and not self.host.is_cached(group, key)

    # ------------------------------------------------------------------ steps

    def receive(self) -> list[Chain]:
        """See `Index`. Everything was answered at once."""
        return []

    def plan(self, *, sinks: bool = True) -> tuple[Errand, ...]:
        """See `Index`. Without `sinks`, these wait."""
        return self.below.plan(sinks=sinks)

    def answered(self, errand: Entry) -> list[Chain]:
        """See `Index`."""
        return self.below.settle(errand)

    def late(self, errand_id: int) -> None:
        """See `Index`."""
        self.below.late(errand_id)

    def passed(self, seconds: float) -> None:
        """See `Index`. Nothing here has a deadline of its own."""

    def computed(self, tokens: int, seconds: float) -> None:
        """See `Index`."""
        self.below.computed(tokens, seconds)

    def grow(self, slots: int) -> None:
        """See `Index`."""
        self.host.grow(slots)

    def reset(self, *, below: bool) -> None:
        """See `Index`."""
        self.below.reset(clear=below)

    def clear(self) -> None:
        """See `Index`."""
        self.host.clear()

    @property
    def waiting(self) -> bool:
        """See `Index`."""
        return self.below.waiting

    @property
    def sinking(self) -> bool:
        """See `Index`."""
        return bool(self.below.sink_queue_blocks)

    def fill(self) -> Fill:
        """See `Index`."""
        host, below = self.host, self.below
        pinned = host.num_pinned()
        return Fill(host.slots, host.num_free, host.num_cached, pinned, below.sink_queue_blocks, below.searches)

    # ------------------------------------------------------------------ granting

    def _lacking(self, want: Want, grant: Grant) -> list[tuple[int, int]]:
        """Return where parts begin and end that are on the device and not here."""
        chain = want.chain
        if want.touch:
            known = self.host.use_keys(chain.group, chain.keys, chain.end_tokens)
            self.below.rely_on(known)
        else:  # what the device still has can be asked for again
            known = self.host.slots_of(chain.group, chain.keys)
            gone = zip(known, chain.blocks, strict=True)
            self.below.rely_on(slot for slot, block in gone if block == NULL_BLOCK)
        if None not in known:
            return []  # what was loaded, mostly
        runs: list[tuple[int, int]] = []
        first: int | None = None
        for position, (slot, block) in enumerate(zip(known, chain.blocks, strict=True)):
            if slot is None and block != NULL_BLOCK:
                first = position if first is None else first
                continue
            if slot is None:
                grant.gone.append(position)
            if first is not None:
                runs.append((first, position))
                first = None
        return runs if first is None else [*runs, (first, len(chain))]

    def _grant(self, run: Chain, position: int, want: Want, grant: Grant, room_blocks: int) -> None:
        """Give slots to blocks that follow each other, as far as there are any."""
        if want.needs_prefix and run.parent is not None and not self.host.has(run.group, run.parent):
            grant.refused[NotStored.PREFIX_MISSING] += len(run)
            grant.reached = min(grant.reached, position)
            return
        granted = 0
        while granted < len(run) and grant.blocks < room_blocks:
            size = min(len(run) - granted, room_blocks - grant.blocks, RUN_BLOCKS_MAX)
            part = self._begin(self._part(run, granted, granted + size))
            if part is None:
                break
            grant.runs.append(part)
            grant.blocks += len(part)
            granted += len(part)
            if len(part) < size:
                break
        if granted == len(run):
            return
        grant.reached = min(grant.reached, position + granted)
        if grant.blocks >= room_blocks or self._may_grow_soon(want):
            grant.left.append(self._part(run, granted, len(run)))
        else:
            grant.refused[NotStored.HOST_FULL] += len(run) - granted

    def _may_grow_soon(self, want: Want) -> bool:
        """Whether it is worth it to ask for slots again in the next step: the pool is not as large yet as it may be.

        Of a request that has ended, once in any case. Then as long as slots are being written: when that ends there is
        news of slots. Memory is pinned meanwhile, and what is written shows whether blocks pack.
        """
        soon = self.host.num_writing > 0 and not self._is_shared
        return self.host.slots < self.host.slots_max and (want.touch or soon)

    def _begin(self, run: Chain) -> Chain | None:
        """Let the first blocks be written, as many as there are slots; None: there is none."""
        anchor = self._anchor(run)
        slots = self.host.take(len(run))
        if not slots:
            if anchor is not None:
                self.host.unpin([anchor])
            return None
        run = self._part(run, 0, len(slots))
        run.slots = slots
        run.anchor = anchor
        self.host.assign(run)
        return run

    def _anchor(self, run: Chain) -> int | None:
        """Pin the parent, so that it is not evicted to make room for its own child."""
        slot = self.host.cached_slot(run.group, run.parent) if run.parent is not None else None
        if slot is not None:
            self.host.pin([slot])
        return slot

    def _part(self, chain: Chain, first: int, last: int) -> Chain:
        if first == 0 and last == len(chain):
            return chain
        return chain.part(first, last, self.block_tokens[chain.group])

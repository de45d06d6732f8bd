"""An index that is elsewhere: nodes that are not there, come and go, and answer late. Lives are kept apart (I13)."""

from __future__ import annotations

import pytest

from kvtide.core import FullAttention, Match, NotLoaded, NotStored
from kvtide.core.chain import Chain
from kvtide.core.index.calls import OFFERS_MAX, Call, LookUp, Ready, Release, Reply, Reserve
from kvtide.core.index.index import Grant, Want
from kvtide.core.index.lives import ATTACH_S, STEP_S_MAX
from kvtide.core.index.look_ups import LATE_S
from kvtide.core.index.remote import LOOK_UP_S, RemoteIndex
from kvtide.core.index.reservations import ASK_S, ASKS_MAX
from kvtide.core.ledger import Entry
from tests.core.index.bench import SIZE, Bench, config_of, engine_of
from tests.memory_node import MemoryLink, MemoryNode

FULL = (FullAttention(SIZE),)


class Remote(Bench):
    """An engine with an index that is elsewhere."""

    def __init__(self, *, later: bool = False, slots: int = 16) -> None:
        bench = engine_of(MemoryNode(config_of(FULL, slots)), FULL, slots, later=later)
        super().__init__(bench.index, FULL, bench.link, slots=slots)
        self._mapped = bench.index.pool

    @property
    def way(self) -> MemoryLink:
        assert self.link is not None
        return self.link

    @property
    def remote(self) -> RemoteIndex:
        assert isinstance(self.index, RemoteIndex)
        return self.index

    def sent(self, kind: type[Call]) -> list[Call]:
        """Return what was sent of some kind."""
        return [call for _, call in self.way.sent if isinstance(call, kind)]

    def look(self, request_blocks: int = 2) -> Match:
        """Look a text up, once."""
        request = self.request("a", request_blocks)
        return self.index.look_up(request, 0, request_blocks * SIZE + 1, lambda _: True)

    def want(self, name: str, blocks: int) -> Want:
        return Want(self.chain(name, 0, blocks), needs_prefix=False, touch=False)

    def write(self, name: str, blocks: int) -> list[Chain]:
        (grant,) = self.ask(self.chain(name, 0, blocks))
        return grant.runs

    def is_waiting(self) -> bool:
        return self.index.waiting

    def check_at_rest(self) -> None:
        """Check that nothing is held or awaited here or at the node."""
        for _ in range(3):
            self.step()
        self.way.check_at_rest()
        assert self.remote._reservations.at_rest
        assert self.remote._look_ups.at_rest
        assert not any(self.remote._lives._held.values())


@pytest.fixture
def bench() -> Remote:
    return Remote()


@pytest.fixture
def slow() -> Remote:
    return Remote(later=True)


# ---------------------------------------------------------------------- no node


def test_without_a_node_a_look_up_is_a_miss_at_once_and_stores_are_refused(bench: Remote) -> None:
    bench.store("a", 0, 2)
    bench.way.go_away()
    sent = len(bench.way.sent)
    waited_s = bench.way.waited_s
    match = bench.look()
    assert (match.tokens, match.waits, match.missed) == (0, False, {NotLoaded.NODE_AWAY: 2 * SIZE + 1})
    chain = bench.chain("b", 0, 3)
    chain.blocks[1] = 0
    (grant,) = bench.ask(chain)
    assert (grant.runs, grant.left, grant.reached) == ([], [], 0)
    assert (grant.refused, grant.gone) == ({NotStored.NODE_AWAY: 2}, [1])
    bench.index.release(bench.index.lease(match))
    bench.index.grow(8)
    bench.step()
    assert bench.way.waited_s == waited_s, "nobody waits for a node that is not there"
    assert len(bench.way.sent) == sent


def test_a_node_that_comes_is_told_what_is_ready_and_used(bench: Remote) -> None:
    bench.way.go_away()
    bench.step()
    bench.way.come()
    bench.step()
    assert (bench.way.life, Ready(16)) in bench.way.sent
    bench.store("a", 0, 2)
    assert bench.found("a", 2) == 2 * SIZE


def test_nothing_of_an_earlier_life_of_the_node_is_found(bench: Remote) -> None:
    bench.store("a", 0, 2)
    assert bench.index.has(0, bench.chain("a", 0, 1).keys[0])
    bench.way.node.restart()
    assert bench.found("a", 2) == 0
    assert not bench.index.has(0, bench.chain("a", 0, 1).keys[0])
    bench.check_at_rest()


def test_what_was_committed_is_found_by_the_next_life_at_the_same_node(bench: Remote) -> None:
    bench.store("a", 0, 2)
    bench.way.go_away()
    bench.step()
    bench.way.come()
    bench.step()
    assert bench.found("a", 2) == 2 * SIZE
    bench.check_at_rest()


# ---------------------------------------------------------------------- a life begins without memory


def begun(slots: int = 16) -> Remote:
    """An engine whose second life has begun, and whose ranks have not mapped anything yet."""
    bench = Remote(slots=slots)
    bench.store("a", 0, 2)
    bench.slots = 0
    bench.way.go_away()
    bench.step()
    bench.way.come()
    bench.step()
    bench.way.sent.clear()
    return bench


def test_right_after_a_life_begins_requests_wait_for_the_ranks_and_nobody_is_asked() -> None:
    bench = begun()
    match = bench.look()
    assert (match.waits, match.missed) == (True, {NotLoaded.NODE_LATE: 2 * SIZE + 1})
    bench.index.passed(ATTACH_S / 4)
    assert bench.look().waits
    assert not bench.sent(LookUp)
    bench.index.grow(16)
    assert bench.look().tokens == 2 * SIZE


def test_ranks_that_take_too_long_cost_hits_and_no_more() -> None:
    bench = begun()
    for _ in range(4):
        assert bench.look().waits
        bench.index.passed(ATTACH_S / 4)
    match = bench.look()
    assert (match.waits, match.missed) == (False, {NotLoaded.NODE_LATE: 2 * SIZE + 1})
    assert not bench.sent(LookUp)
    bench.index.grow(16)
    assert bench.look().tokens == 2 * SIZE, "they are late, not lost"


def test_time_that_passed_in_an_earlier_life_does_not_count(bench: Remote) -> None:
    for _ in range(4):
        bench.index.passed(ATTACH_S / 4)
    bench.slots = 0
    bench.way.node.restart()
    bench.step()
    assert bench.look().waits


def test_ranks_are_not_late_because_the_engine_has_rested() -> None:
    bench = begun()
    bench.index.passed(100 * ATTACH_S)
    assert bench.look().waits, "they have not heard of anything meanwhile"
    bench.index.passed(STEP_S_MAX)
    assert bench.look().waits
    bench.index.passed(100 * ATTACH_S)
    assert not bench.look().waits


def test_what_lies_in_slots_that_are_not_ready_is_a_miss() -> None:
    bench = begun()
    bench.index.grow(1)
    match = bench.look()
    assert (match.tokens, match.waits) == (0, False)
    assert match.missed == {NotLoaded.NOT_CACHED: 2 * SIZE + 1}


def test_nothing_is_evicted_for_an_engine_that_cannot_write_yet() -> None:
    bench = begun(slots=2)
    (grant,) = bench.ask(bench.chain("b", 0, 2))
    assert (grant.runs, grant.refused) == ([], {NotStored.NODE_LATE: 2})
    assert not bench.sent(Reserve)
    assert bench.fill() == (0, 2, 0)


# ---------------------------------------------------------------------- what is asked when the node goes


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "not noticed"])
@pytest.mark.parametrize("comes_back", [True, False], ids=["and comes back", "for good"])
def test_whoever_waits_for_a_node_that_goes_is_told(slow: Remote, noticed: bool, comes_back: bool) -> None:
    answers: list[list[Grant]] = []
    slow.index.reserve([slow.want("a", 2), slow.want("b", 1)], 9, answers.append)
    assert slow.look().waits
    if comes_back:
        slow.way.node.restart()
    else:
        slow.way.go_away()
    if noticed:
        slow.step()
    slow.step()
    ((first, second),) = answers
    assert (first.refused, second.refused) == ({NotStored.NODE_AWAY: 2}, {NotStored.NODE_AWAY: 1})
    match = slow.look()
    assert match.waits == comes_back
    assert comes_back or match.missed == {NotLoaded.NODE_AWAY: 2 * SIZE + 1}
    slow.index.passed(1.0)
    slow.step()


def test_a_node_that_goes_while_it_is_waited_for_is_a_miss(slow: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(seconds: float) -> float:
        slow.way.node.restart()
        return seconds / 2

    monkeypatch.setattr(slow.way, "wait", wait)
    match = slow.look()
    assert (match.waits, match.missed) == (False, {NotLoaded.NODE_AWAY: 2 * SIZE + 1})


def test_a_reservation_is_not_sent_into_a_life_that_nobody_has_noticed(bench: Remote) -> None:
    bench.way.node.restart()
    (grant,) = bench.ask(bench.chain("a", 0, 2))
    assert grant.refused == {NotStored.NODE_AWAY: 2}
    bench.step()
    assert not bench.sent(Reserve)
    bench.check_at_rest()


# ---------------------------------------------------------------------- leases and runs of an old life


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "not noticed"])
def test_leases_and_runs_of_an_old_life_are_not_named_in_the_next_one(bench: Remote, noticed: bool) -> None:
    bench.store("a", 0, 2)
    match, lease = bench.lease("a", 2)
    runs = bench.write("b", 3)
    assert not bench.index.is_over(lease)
    assert not any(map(bench.index.is_over, runs))
    bench.way.node.restart()
    if noticed:
        bench.step()
    assert bench.index.is_over(lease)
    assert all(map(bench.index.is_over, runs))
    bench.way.sent.clear()
    bench.index.use(match)
    bench.index.release(lease)
    rest = bench.index.cut(runs[0], 1)
    assert len(rest) == 2
    assert not bench.index.settle(runs, kept=True), "it came to nothing"
    assert {type(call) for _, call in bench.way.sent} <= {Ready}
    bench.check_at_rest()
    assert bench.local.fill().cached == 0
    assert bench.way.node.space_of[2].shared.calls_unknown == 0


def test_chains_of_several_lives_come_to_nothing_together(bench: Remote) -> None:
    old = bench.write("a", 1)
    bench.way.go_away()
    bench.step()
    bench.way.come()
    bench.step()
    new = bench.write("b", 1)
    assert not bench.index.settle([*old, *new], kept=True)
    assert bench.found("b", 1) == 0
    assert not bench.index.has(0, new[0].keys[0])
    bench.check_at_rest()
    assert bench.fill() == (16, 0, 0)


def test_a_life_is_drained_once_when_the_last_that_it_held_is_returned(bench: Remote) -> None:
    bench.store("a", 0, 2)
    leases = [bench.lease("a", 2)[1] for _ in range(2)]
    runs = bench.write("b", 1)
    assert bench.way.life == 1
    bench.way.go_away()
    bench.step()
    for lease in leases:
        assert not bench.way.lives_drained
        bench.index.release(lease)
    assert not bench.way.lives_drained
    bench.index.settle(runs, kept=False)
    assert bench.way.lives_drained == [1]
    bench.step()
    bench.way.come()
    bench.step()
    assert bench.way.lives_drained == [1]
    bench.check_at_rest()


@pytest.mark.parametrize("holds", [True, False])
def test_a_life_in_which_nothing_is_held_is_drained_at_its_end_and_not_before(bench: Remote, holds: bool) -> None:
    if holds:
        bench.store("a", 0, 2)
        bench.index.release(bench.lease("a", 2)[1])
        bench.index.settle(bench.write("b", 1), kept=False)
    bench.step()
    assert not bench.way.lives_drained
    bench.way.go_away()
    bench.step()
    bench.step()
    assert bench.way.lives_drained == [1]


def test_what_was_found_and_not_leased_does_not_keep_a_life_from_being_drained(bench: Remote) -> None:
    bench.store("a", 0, 2)
    assert bench.look().tokens
    assert bench.look().tokens
    bench.way.go_away()
    bench.step()
    assert bench.way.lives_drained == [1]


def test_a_miss_does_not_keep_a_life_from_being_drained(bench: Remote) -> None:
    assert not bench.look().tokens
    bench.way.go_away()
    bench.step()
    assert bench.way.lives_drained == [1]


def test_what_waits_in_the_answers_of_a_life_does_not_keep_it_from_being_drained(slow: Remote) -> None:
    slow.store("a", 0, 2)
    assert slow.look().waits
    slow.index.reserve([slow.want("b", 2)], 9, lambda _: None)
    slow.index.plan()
    slow.way.let_in()  # it has come, and nobody has looked
    slow.way.node.restart()
    slow.step()
    assert slow.way.lives_drained == [1]
    slow.check_at_rest()


# ---------------------------------------------------------------------- reset


@pytest.mark.parametrize("below", [True, False])
def test_a_reset_leaves_and_finds_nothing_of_before(slow: Remote, below: bool) -> None:
    slow.store("a", 0, 2)
    _, lease = slow.lease("a", 2)
    runs = slow.write("b", 1)
    answers: list[list[Grant]] = []
    slow.index.reserve([slow.want("c", 2)], 9, answers.append)
    assert slow.look().waits
    slow.index.plan()
    old = slow.way.space
    slow.index.reset(below=below)
    slow.index.clear()
    ((grant,),) = answers
    assert grant.refused == {NotStored.RESET: 2}
    assert slow.found("a", 2) == 0
    assert not slow.way.lives_drained
    assert not slow.index.settle(runs, kept=True)
    slow.index.release(lease)
    assert slow.way.lives_drained == [1]
    slow.check_at_rest()
    assert slow.way.space is not old
    assert len(answers) == 1
    assert old.local.fill().cached == 2, "others may still use what was there before"


def test_a_reset_without_a_node_still_leaves(bench: Remote) -> None:
    bench.store("a", 0, 2)
    bench.way.go_away()
    bench.index.reset(below=True)
    bench.way.come()
    bench.step()
    assert bench.found("a", 2) == 0


# ---------------------------------------------------------------------- deadlines


def test_a_look_up_holds_the_engine_up_once_then_waits_then_is_a_miss(slow: Remote) -> None:
    request = slow.request("a", 2)

    def look() -> Match:
        return slow.index.look_up(request, 0, 2 * SIZE + 1, lambda _: True)

    assert look().waits
    assert slow.way.waited_s == LOOK_UP_S
    slow.index.passed(LATE_S / 2)
    match = look()
    assert (match.waits, match.missed) == (True, {NotLoaded.NODE_LATE: 2 * SIZE + 1})
    assert slow.index.fill().searches == 1
    slow.index.passed(LATE_S / 2)
    match = look()
    assert (match.waits, match.missed) == (False, {NotLoaded.NODE_LATE: 2 * SIZE + 1})
    assert slow.way.waited_s == LOOK_UP_S
    assert len(slow.sent(LookUp)) == 1


def test_a_node_that_does_not_answer_holds_the_engine_up_once_and_not_for_each_request(slow: Remote) -> None:
    for name in "abc":
        slow.index.look_up(slow.request(name, 2), 0, 2 * SIZE + 1, lambda _: True)
    assert slow.way.waited_s == LOOK_UP_S
    slow.step()
    slow.index.look_up(slow.request("d", 2), 0, 2 * SIZE + 1, lambda _: True)
    assert slow.way.waited_s == 2 * LOOK_UP_S, "it has answered, if late"
    slow.way.node.restart()
    slow.step()
    slow.index.look_up(slow.request("e", 2), 0, 2 * SIZE + 1, lambda _: True)
    assert slow.way.waited_s == 3 * LOOK_UP_S, "another one may be faster"


def test_a_look_up_is_answered_in_the_same_step_though_something_else_comes_first(
    slow: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.store("a", 0, 2)
    slow.index.reserve([slow.want("b", 1)], 9, lambda _: None)
    monkeypatch.setattr(slow.way, "wait", slow.way.let_one_in)
    match = slow.look()
    assert not match.waits
    assert match.tokens == 2 * SIZE


def test_an_answer_that_comes_late_is_used_if_the_request_still_waits(slow: Remote) -> None:
    slow.store("a", 0, 2)
    request = slow.request("a", 2)
    slow.index.look_up(request, 0, 2 * SIZE + 1, lambda _: True)
    slow.index.passed(10 * LATE_S)
    slow.step()
    slow.index.passed(10 * LATE_S)  # a long step: the request was not asked meanwhile
    match = slow.index.look_up(request, 0, 2 * SIZE + 1, lambda _: True)
    assert (match.tokens, match.waits) == (2 * SIZE, False)
    slow.index.release(slow.index.lease(match))
    slow.check_at_rest()


def test_an_answer_that_comes_when_nobody_wants_it_any_more_is_released(slow: Remote) -> None:
    slow.store("a", 0, 2)
    request = slow.request("a", 2)
    slow.index.look_up(request, 0, 2 * SIZE + 1, lambda _: True)
    slow.index.drop(request)
    assert slow.index.fill().searches == 0
    slow.step()
    slow.step()
    assert [type(call) for call in slow.sent(Release)] == [Release]
    slow.check_at_rest()


def test_a_request_that_needs_something_else_by_now_gets_the_answer_to_that(slow: Remote) -> None:
    (run,) = slow.store("a", 0, 4)
    request = slow.request("a", 4)
    slow.index.look_up(request, 0, 4 * SIZE + 1, lambda _: True)
    match = slow.look_up(request, device_tokens=2 * SIZE)
    assert match.slots == run.slots[2:]
    slow.index.release(slow.index.lease(match))
    slow.check_at_rest()


def test_f4_tokens_without_keys_are_counted_as_not_there(bench: Remote) -> None:
    bench.store("a", 0, 2)
    request = bench.request("a", 3)
    match = bench.index.look_up(request, 0, 10 * SIZE, lambda _: True)
    assert (match.tokens, match.missed) == (2 * SIZE, {NotLoaded.NOT_CACHED: 7 * SIZE})


def test_the_same_answer_serves_for_a_moment_and_is_then_given_back(bench: Remote) -> None:
    bench.store("a", 0, 2)
    request = bench.request("a", 2)
    bench.look_up(request)
    bench.index.passed(LATE_S / 2)
    bench.look_up(request)
    assert len(bench.sent(LookUp)) == 1
    bench.index.passed(LATE_S / 2)
    assert bench.remote._look_ups.at_rest
    bench.check_at_rest()
    bench.look_up(request)
    assert len(bench.sent(LookUp)) == 2


def test_a_node_that_does_not_answer_a_reservation_is_left_and_tried_again(slow: Remote) -> None:
    answers: list[list[Grant]] = []
    slow.index.reserve([slow.want("a", 2)], 9, answers.append)
    slow.index.plan()
    life = slow.way.life
    for _ in range(int(ASK_S) - 1):
        slow.index.passed(1.0)
    assert not answers
    assert slow.way.life == life
    slow.index.passed(1.0)
    ((grant,),) = answers
    assert grant.refused == {NotStored.NODE_LATE: 2}
    assert slow.way.life != life
    assert slow.fill() == (16, 0, 0), "what it would have granted is free again"
    slow.check_at_rest()
    assert len(answers) == 1


def test_a_node_is_not_left_because_the_engine_has_paused(slow: Remote) -> None:
    answers: list[list[Grant]] = []
    slow.index.reserve([slow.want("a", 2)], 9, answers.append)
    slow.index.plan()
    life = slow.way.life
    slow.index.passed(6 * ASK_S)
    slow.step()
    assert slow.way.life == life
    ((grant,),) = answers
    assert grant.blocks == 2


def test_a_node_that_does_not_keep_up_is_not_asked_more_and_more(slow: Remote) -> None:
    answers: list[list[Grant]] = []
    for _ in range(ASKS_MAX):
        slow.index.reserve([slow.want("a", 1)], 9, answers.append)
    assert not answers
    slow.index.reserve([slow.want("a", 3)], 9, answers.append)
    ((grant,),) = answers
    assert grant.refused == {NotStored.QUEUE_FULL: 3}


def test_a_node_is_not_asked_for_more_chains_than_a_call_may_have(bench: Remote) -> None:
    answers: list[list[Grant]] = []
    bench.index.reserve([bench.want("a", 1)] * (OFFERS_MAX + 1), 9, answers.append)
    (grants,) = answers
    assert [grant.refused for grant in grants] == [{NotStored.QUEUE_FULL: 1}] * (OFFERS_MAX + 1)
    assert not bench.sent(Reserve)


# ---------------------------------------------------------------------- messages


def test_a_step_in_which_nothing_happens_costs_no_message(bench: Remote) -> None:
    bench.store("a", 0, 2)
    sent = len(bench.way.sent)
    for _ in range(3):
        bench.step()
        bench.index.passed(0.01)
    assert len(bench.way.sent) == sent


def test_a_look_up_is_sent_before_what_has_come_is_taken(bench: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    receive = bench.way.receive

    def received() -> list[Reply]:
        asked.append(len(bench.sent(LookUp)))
        return receive()

    monkeypatch.setattr(bench.way, "receive", received)
    bench.look()
    bench.look(3)
    assert asked[0] == 1
    assert asked[-1] == len(bench.sent(LookUp)) == 2, "and only once"


def test_a_reservation_that_still_holds_is_not_looked_up_again(bench: Remote) -> None:
    bench.store("a", 0, 2)
    request = bench.request("a", 2)
    request.reservation = bench.look_up(request)
    request.lease = bench.index.lease(request.reservation)
    bench.index.passed(10 * LATE_S)
    assert bench.look_up(request) is request.reservation
    assert len(bench.sent(LookUp)) == 1
    bench.way.node.restart()
    assert bench.look_up(request).tokens == 0, "its life is over"
    bench.index.release(request.lease)
    bench.index.drop(request)
    bench.check_at_rest()


def test_a_reservation_of_nothing_is_looked_up_again(bench: Remote) -> None:
    request = bench.request("a", 2)
    request.reservation = bench.index.look_up(request, 0, 2 * SIZE + 1, lambda _: True)
    request.lease = bench.index.lease(request.reservation)
    bench.store("a", 0, 2)
    bench.index.passed(LATE_S)
    assert bench.index.look_up(request, 0, 2 * SIZE + 1, lambda _: True).tokens == 2 * SIZE


def test_whoever_has_something_to_say_is_not_at_rest(bench: Remote) -> None:
    assert not RemoteIndex(bench.way, FULL).waiting
    runs = bench.write("a", 1)
    assert not bench.is_waiting()
    bench.index.settle(runs, kept=True)
    assert bench.is_waiting()
    bench.index.plan()
    assert not bench.is_waiting()
    bench.index.grow(16)
    assert bench.is_waiting()
    bench.way.go_away()
    bench.index.receive()
    assert not bench.is_waiting(), "there is nobody to talk to"


def test_a_lease_says_at_its_end_whether_it_was_used(bench: Remote) -> None:
    bench.store("a", 0, 2)
    for used in (False, True):
        match, lease = bench.lease("a", 2)
        if used:
            bench.index.use(match)
        bench.index.release(lease)
        bench.step()
    released = [call.used for call in bench.sent(Release) if isinstance(call, Release)]
    assert released == [False, True]


def test_what_others_did_not_write_is_handed_on_once(bench: Remote) -> None:
    other = engine_of(bench.way.node, FULL, 16)
    (grant,) = other.ask(other.chain("a", 0, 1))
    bench.ask(bench.chain("a", 0, 1))
    other.index.settle(grant.runs, kept=False)
    other.step()
    chains = bench.step()
    assert [chain.keys for chain in chains] == [bench.chain("a", 0, 1).keys]
    assert bench.step() == []


def test_what_others_did_not_write_waits_for_a_step(bench: Remote) -> None:
    other = engine_of(bench.way.node, FULL, 16)
    (grant,) = other.ask(other.chain("a", 0, 1))
    bench.ask(bench.chain("a", 0, 1))
    other.index.settle(grant.runs, kept=False)
    other.step()
    bench.look()
    assert bench.is_waiting()
    bench.way.go_away()
    assert len(bench.step()) == 1, "another node may have it, or it is counted"
    assert not bench.is_waiting()


def keys(bench: Bench, name: str, blocks: int) -> list[bytes]:
    return bench.chain(name, 0, blocks).keys


def test_what_was_committed_or_found_is_remembered_until_the_life_ends(bench: Remote) -> None:
    bench.store("a", 0, 2)
    other = engine_of(bench.way.node, FULL, 16)
    assert not other.index.has(0, keys(bench, "a", 1)[0])
    assert other.found("a", 2) == 2 * SIZE
    for index in (bench.index, other.index):
        assert all(index.has(0, key) for key in keys(bench, "a", 2))
        assert not index.is_arriving(0, keys(bench, "a", 1)[0])
    bench.way.go_away()
    bench.step()
    assert not any(bench.index.has(0, key) for key in keys(bench, "a", 2))


def test_what_the_node_says_that_it_has_is_remembered_and_nothing_else(bench: Remote) -> None:
    other = engine_of(bench.way.node, FULL, 16)
    other.store("a", 0, 2)
    chain = bench.chain("a", 0, 5)
    chain.blocks[2] = 0
    grants: list[Grant] = []
    bench.index.reserve([Want(chain, needs_prefix=False, touch=False)], 1, grants.extend)
    bench.step()
    (grant,) = grants
    assert [len(run) for run in grant.runs] == [1]
    assert (grant.gone, [len(left) for left in grant.left]) == ([2], [1])
    assert [bench.index.has(0, key) for key in chain.keys] == [True, True, False, False, False]
    bench.index.settle(grant.runs, kept=True)
    assert bench.index.has(0, chain.keys[3])


def test_nothing_is_remembered_of_a_chain_of_which_something_was_refused() -> None:
    """The node does not say what."""
    bench = Remote(slots=2)
    other = engine_of(bench.way.node, FULL, 2)
    other.store("a", 0, 2)
    (lease,) = [other.index.lease(other.index.look_up(other.request("a", 2), 0, 2 * SIZE + 1, lambda _: True))]
    (grant,) = bench.ask(bench.chain("a", 0, 3))
    assert grant.refused == {NotStored.HOST_FULL: 1}
    assert not any(bench.index.has(0, key) for key in keys(bench, "a", 3))
    other.index.release(lease)


def test_what_somebody_has_not_written_is_not_remembered(bench: Remote) -> None:
    other = engine_of(bench.way.node, FULL, 16)
    (grant,) = other.ask(other.chain("a", 0, 2))
    bench.ask(bench.chain("a", 0, 2))
    assert bench.index.has(0, keys(bench, "a", 1)[0])
    other.ask(other.chain("a", 0, 2))
    other.index.settle(grant.runs, kept=False)
    other.step()
    assert not other.index.has(0, keys(bench, "a", 1)[0])
    bench.step()
    assert not bench.index.has(0, keys(bench, "a", 1)[0])


def test_there_are_no_errands_and_only_the_node_knows_how_full_it_is(bench: Remote) -> None:
    assert bench.index.answered(Entry(1)) == []
    fill = bench.index.fill()
    assert (fill.slots, fill.free, fill.cached, fill.pinned) == (0, 0, 0, 0)

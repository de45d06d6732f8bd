"""The state machine of a request: one table, and everything that is not in it is an error."""

from __future__ import annotations

import pytest

from kvtide.core.requests import TRANSITIONS, Request, RequestEvent, State
from kvtide.errors import ProtocolError

DEFINED = [(state, event, following) for state, row in TRANSITIONS.items() for event, following in row.items()]
UNDEFINED = [(state, event) for state in State for event in RequestEvent if event not in TRANSITIONS[state]]


def request_in(state: State) -> Request:
    return Request("r", [[], []], [[], []], state=state)


@pytest.mark.parametrize(("state", "event", "following"), DEFINED)
def test_a_defined_event_changes_the_state(state: State, event: RequestEvent, following: State) -> None:
    request = request_in(state)
    request.handle(event)
    assert request.state is following


@pytest.mark.parametrize(("state", "event"), UNDEFINED)
def test_an_undefined_event_is_a_protocol_error_and_changes_nothing(state: State, event: RequestEvent) -> None:
    request = request_in(state)
    with pytest.raises(ProtocolError, match=rf"'r' is {state.name}: {event.name}"):
        request.handle(event)
    assert request.state is state


def test_the_table_has_a_row_for_every_state() -> None:
    assert set(TRANSITIONS) == set(State)


def test_every_state_can_be_reached_and_left() -> None:
    assert {following for _, _, following in DEFINED} == set(State)
    assert all(any(following is not state for following in row.values()) for state, row in TRANSITIONS.items())


def test_every_event_has_a_meaning_somewhere() -> None:
    assert {event for _, event, _ in DEFINED} == set(RequestEvent)


def test_only_a_reserved_request_can_be_admitted_with_a_load() -> None:
    assert [state for state, event, _ in DEFINED if event is RequestEvent.ADMIT_WITH_LOAD] == [State.RESERVED]


def test_a_load_ends_only_where_one_runs() -> None:
    assert [state for state, event, _ in DEFINED if event is RequestEvent.LOAD_ENDED] == [State.LOADING]


@pytest.mark.parametrize("state", State)
def test_preemption_is_possible_in_every_state(state: State) -> None:
    assert TRANSITIONS[state][RequestEvent.PREEMPT] is State.WAITING


def test_a_new_request_waits_and_has_nothing_considered() -> None:
    request = Request("r", [[], []], [[], []])
    assert request.state is State.WAITING
    assert request.considered == [0, 0]

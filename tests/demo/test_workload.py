"""The workload is the same in every run with the same settings."""

from __future__ import annotations

from kvtide.demo.workload import Conversation, Turn, arrivals, conversations
from tests.demo.support import tiny


def test_conversations_depend_on_the_seed_and_nothing_else() -> None:
    assert conversations(tiny()) == conversations(tiny(device_blocks=64, ranks=2, host="1MiB"))
    assert conversations(tiny()) != conversations(tiny(seed=1))


def test_more_conversations_leave_the_first_ones_as_they_were() -> None:
    assert conversations(tiny(conversations=5))[:3] == conversations(tiny())


def test_no_two_users_say_the_same() -> None:
    assert len({conversation.says for conversation in conversations(tiny())}) == 3


def test_turns_have_the_sizes_that_were_asked_for() -> None:
    assert [[len(said) for said in conversation.says] for conversation in conversations(tiny())] == [[48, 9, 9]] * 3


def test_a_prompt_is_the_whole_history_and_the_new_words() -> None:
    conversation = Conversation(0, ((1, 2), (3,), (4,)))
    assert conversation.prompt([]) == [1, 2]
    assert conversation.prompt([(7, 8)]) == [1, 2, 7, 8, 3]
    assert conversation.prompt([(7, 8), (9,)]) == [1, 2, 7, 8, 3, 9, 4]


def test_turns_are_interleaved_and_arrive_as_many_at_a_time_as_are_served() -> None:
    assert list(arrivals(tiny(turns=2, concurrency=2))) == [
        [Turn(0, 0), Turn(1, 0)],
        [Turn(2, 0)],
        [Turn(0, 1), Turn(1, 1)],
        [Turn(2, 1)],
    ]

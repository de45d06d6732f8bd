"""Engines at a node with the deadlines that users have. Other tests wait longer for a node, for they count hits.

On a busy machine an answer may be late here: that is a miss. What is said is the same.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from kvtide.engine import Completion, Engine
from tests.engine.test_node import prompt
from tests.node.real_node import Answer, RealNode, config_of, serve
from tests.node.support import wait_until


def test_with_the_deadlines_that_users_have_engines_say_what_one_alone_says(tmp_path: Path) -> None:
    talks = [prompt(3000 + number, 64) for number in range(3)]
    options = {"node": str(tmp_path / "node.sock")}
    loaded = asked = 0
    with (
        RealNode(tmp_path / "node.sock") as node,
        Engine(config_of(), options) as first,
        Engine(config_of(), options) as second,
        Engine(config_of()) as reference,
    ):
        for turn in range(6):
            if turn == 4:
                node.kill()
                node.start()
            for number, tokens in enumerate(talks):
                engine = (first, second)[(turn + number) % 2]
                answer = serve_while_it_hangs(node, engine, tokens) if turn == 2 else serve(engine, tokens, 4)
                assert answer.tokens == serve(reference, tokens, 4).tokens, f"conversation {number}, turn {turn}"
                loaded += answer.loaded_tokens
                asked += len(tokens)
                tokens += [*answer.tokens, *prompt(2000 + 10 * turn + number, 12)]
        sys.stdout.write(f"{loaded} of {asked} tokens were loaded\n")  # for `pytest -rP`
        new = map(prompt, range(1000))

        def is_loaded() -> bool:
            """Whether one engine finds what the other has just stored: in time, at least once."""
            tokens = next(new)
            said = [serve(engine, tokens, 4) for engine in (first, second)]
            assert said[0].tokens == said[1].tokens == serve(reference, tokens, 4).tokens
            return said[1].loaded_tokens > 0

        wait_until(is_loaded)


def serve_while_it_hangs(node: RealNode, engine: Engine, tokens: list[int]) -> Answer:
    """Answer a prompt while the node does nothing; it goes on afterwards."""
    node.process.send_signal(signal.SIGSTOP)
    engine.submit("r", tokens, 4)
    done: list[Completion] = []

    def is_answered() -> bool:
        done.extend(engine.step())
        return bool(done)

    wait_until(is_answered)
    node.process.send_signal(signal.SIGCONT)
    engine.run()
    return Answer(list(done[0].tokens), done[0].device_tokens, done[0].loaded_tokens)

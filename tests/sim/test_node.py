"""Several engines and a node: what they share, and what it takes until a broken rule ends in wrong bytes."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from kvtide.core.index.calls import Found, LookUp
from kvtide.sim.batch import run_canary, run_seed
from kvtide.sim.canaries import node as canaries
from kvtide.sim.canaries.base import Canary
from kvtide.sim.node import watch
from kvtide.sim.node.books import Books, Granted, Place
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.checkers.commits import CommitsChecker
from kvtide.sim.node.checkers.namespaces import NamespacesChecker
from kvtide.sim.node.connection import Connection
from kvtide.sim.options import WITH_NODE

SEEDS = 40


class Follows(NodeChecker):
    """Remembers who has committed which slot, and counts who finds it. What nobody has committed came up from tiers."""

    shared = survived = brought_up = 0

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self.committed_by: dict[Place, Connection] = {}

    def committed(self, run: Granted) -> None:
        self.committed_by.update(dict.fromkeys(run.places(), run.owner))

    def found(self, owner: Connection, call: LookUp, found: Found) -> None:
        assert owner.arena is not None
        for slot in [slot for piece in found.pieces for slot in piece.slots]:
            committer = self.committed_by.get((owner.arena, slot))
            if committer is None:
                Follows.brought_up += 1
                continue
            writer = committer.engine
            Follows.shared += writer.name != owner.engine.name
            Follows.survived += writer.name == owner.engine.name and writer is not owner.engine


def test_engines_find_what_others_have_stored_and_what_they_had_before_they_were_killed() -> None:
    with patch.object(watch, "NODE_CHECKERS", (Follows,)):
        for seed in range(2 * SEEDS):
            assert run_seed(seed, WITH_NODE).found is None
    assert Follows.shared > SEEDS
    assert Follows.survived > 0
    assert Follows.brought_up > 0


def test_in_a_calm_world_nobody_dies_and_no_connection_breaks() -> None:
    results = [run_seed(seed, {"node": "calm"}) for seed in range(SEEDS)]
    assert not any(result.found for result in results)
    assert not any(
        result.faults.get(kind) for result in results for kind in ("link_breaks", "engine_dies", "node_dies")
    )


@pytest.mark.parametrize(
    "canary", [canaries.reuse_before_exit, canaries.commit_of_an_old_epoch], ids=lambda each: each.name
)
def test_broken_rules_of_a_node_end_in_wrong_bytes(canary: Canary) -> None:
    # With all checkers on, these are caught as soon as a rule is broken. Here nobody looks but at the bytes.
    with patch.object(watch, "NODE_CHECKERS", (CommitsChecker, NamespacesChecker)):
        found = run_canary(canary, 0, {"tier": "none"}, 1_500)
    assert found.invariant in ("I4", "I12", "I15")

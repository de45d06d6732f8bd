"""All that kvtide says is in vLLM's log, once, with the rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kvtide.vllm.log import take_over_lines

TIERS = logging.getLogger("kvtide.tiers.disk.opening")
COPY = logging.getLogger("kvtide.copy.cuda.pinning")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Give each test a logger that nobody has touched."""
    ours = logging.getLogger("kvtide")
    handlers, ours.handlers = ours.handlers, []
    level, ours.level, propagate, ours.propagate = ours.level, logging.NOTSET, ours.propagate, True
    yield
    ours.handlers, ours.propagate = handlers, propagate
    ours.setLevel(level)


def test_lines_of_tiers_and_copies_are_in_vllms_log_with_the_rank(vllm_log: pytest.LogCaptureFixture) -> None:
    take_over_lines(3)
    TIERS.info("kvtide: disk tier in %s: %d blocks found", "/cache", 7)
    COPY.warning("pinned memory is far away")
    assert [(record.levelname, record.name, record.getMessage()) for record in vllm_log.records] == [
        ("INFO", "vllm.kvtide", "kvtide: rank 3: disk tier in /cache: 7 blocks found"),
        ("WARNING", "vllm.kvtide", "kvtide: rank 3: pinned memory is far away"),
    ]
    assert vllm_log.records[0].filename == "test_log.py", "where it was said"


def test_lines_come_once_however_often_connectors_are_made(vllm_log: pytest.LogCaptureFixture) -> None:
    for rank in (None, 0, None, 0):
        take_over_lines(rank)
    logging.getLogger().addHandler(vllm_log.handler)  # whoever listens at the root as well
    try:
        TIERS.warning("kvtide: once")
    finally:
        logging.getLogger().removeHandler(vllm_log.handler)
    assert [record.getMessage() for record in vllm_log.records] == ["kvtide: rank 0: once"]


def test_errors_keep_their_tracebacks(vllm_log: pytest.LogCaptureFixture) -> None:
    take_over_lines(0)
    TIERS.error("kvtide: it raised", exc_info=ValueError("the disk is gone"))
    assert "ValueError: the disk is gone" in vllm_log.text


def test_what_vllm_does_not_show_is_not_shown(vllm_log: pytest.LogCaptureFixture) -> None:
    take_over_lines(0)
    vllm_log.set_level(logging.ERROR, "vllm")
    TIERS.warning("kvtide: a warning")
    assert not vllm_log.records


def test_people_with_a_handler_of_their_own_keep_their_lines(vllm_log: pytest.LogCaptureFixture) -> None:
    theirs: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: theirs.append(record.getMessage())  # type: ignore[method-assign]  # a handler in one line
    logging.getLogger("kvtide").addHandler(handler)
    take_over_lines(0)
    TIERS.warning("kvtide: once")
    assert theirs == ["kvtide: once"]
    assert not [record for record in vllm_log.records if record.name == "vllm.kvtide"]

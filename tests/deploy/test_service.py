"""The unit for systemd says what a node understands, and nothing that would keep engines from it."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import pytest

from kvtide.node import settings
from kvtide.node.cli import COMMAND
from kvtide.node.node import STOP_S
from kvtide.node.settings import OPTIONS, options_of, read_settings
from kvtide.node.tiers.last_sinks import SINK_S

UNIT = Path(__file__).parents[2] / "deploy" / "kvtide-node.service"


class Unit(configparser.RawConfigParser):
    """A file of systemd. Its names have capitals."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(scope="module")
def unit() -> Unit:
    unit = Unit()
    unit.read_string(UNIT.read_text())
    return unit


@pytest.fixture(scope="module")
def service(unit: Unit) -> configparser.SectionProxy:
    return unit["Service"]


def test_a_node_understands_its_command_line(
    service: configparser.SectionProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, command, *arguments = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("kvtide", "node")
    context = COMMAND.make_context("node", arguments)
    monkeypatch.setattr(settings, "check_memory", lambda *_: None)
    found = read_settings(options_of(None, {name: context.params[name] for name in OPTIONS}))
    assert found.socket.parent == Path("/run") / service["RuntimeDirectory"]
    assert found.metrics_port == 9400


def test_systemd_waits_for_its_start_and_for_its_stop(service: configparser.SectionProxy) -> None:
    assert service["Type"] == "notify"
    assert int(service["TimeoutStopSec"]) > STOP_S + SINK_S
    assert service["RuntimeDirectoryPreserve"] == "yes", "containers keep the folder that they have mounted"


def test_systemd_does_not_give_up_while_engines_have_the_memory_of_a_node_that_was_killed(unit: Unit) -> None:
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_engines_can_be_told_from_strangers_and_metrics_can_be_read(service: configparser.SectionProxy) -> None:
    assert {"AF_UNIX", "AF_INET"} <= set(service["RestrictAddressFamilies"].split())
    assert not {"PrivateUsers", "PrivateNetwork"} & set(service)

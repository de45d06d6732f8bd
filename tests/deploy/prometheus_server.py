"""A real Prometheus that scrapes one server, twice a second, and evaluates our alerts with shorter times."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.not_tested import lacks
from tests.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
WINDOW = "15s"
"""Instead of minutes: what happened in the test is all there is."""
START_S = 60


def find_prometheus() -> str:
    found = shutil.which("prometheus")
    if found is None:
        lacks("the dashboard and the alerts", "`apt-get install prometheus`")
    return found


class Prometheus:
    """Asks it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expression: str) -> list[float]:
        """Return the numbers that an expression has now, without those that are none."""
        answer = self._ask("query?" + urllib.parse.urlencode({"query": expression}))
        found = [float(series["value"][1]) for series in answer["result"]]
        return [number for number in found if math.isfinite(number)]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self._ask("alerts")["alerts"] if alert["state"] == "firing"}

    def unwell(self) -> list[str]:
        """Return what is wrong with rules or targets."""
        rules = [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]
        targets = self._ask("targets")["activeTargets"]
        return [found["lastError"] for found in (*rules, *targets) if found.get("lastError")]

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._address}/api/v1/{path}", timeout=10) as response:  # noqa: S310 (loopback)
            return json.load(response)["data"]


def alerts(rules: str) -> list[str]:
    """Return the names of all alerts of a file."""
    return re.findall(r"- alert: (\w+)", (DEPLOY / rules).read_text())


def queries(dashboard: str) -> dict[str, str]:
    """Return every expression of a dashboard, for all servers, by the title of its panel."""
    found = {}
    for panel in json.loads((DEPLOY / dashboard).read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", WINDOW).replace("$instance", ".*")
            found[f"{panel['title']}, {target['legendFormat']}"] = expression
    return found


def every_panel_has_data(
    dashboard: str, watch: Prometheus, until: Callable[[Callable[[], bool], Callable[[], object]], None]
) -> None:
    """Let `until` wait until each expression of a dashboard had data once; it also hears how to say what has none."""
    lacking = queries(dashboard)

    def asked() -> bool:
        for title, expression in list(lacking.items()):
            if watch.query(expression):
                del lacking[title]
        return not lacking

    until(asked, lambda: f"no data for {lacking}")


@contextmanager
def prometheus(target: str, folder: Path, rules: str) -> Iterator[Prometheus]:
    """Start it; `target` is the address of a server, `rules` the file that has its alerts."""
    shorter = re.sub(r"\[\d+[mh]\]", f"[{WINDOW}]", (DEPLOY / rules).read_text())
    (folder / "alerts.yml").write_text(re.sub(r"\n +for: \w+", "", shorter))
    scrape = {"job_name": "watched", "static_configs": [{"targets": [target.removeprefix("http://")]}]}
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config = {"global": every, "rule_files": ["alerts.yml"], "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML, too
    address = f"127.0.0.1:{free_port()}"
    command = [find_prometheus(), f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 (found by its name)
        try:
            _wait_until_ready(process, f"http://{address}/-/ready", folder / "log")
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(process: Any, url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=1):  # noqa: S310 (loopback)
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())

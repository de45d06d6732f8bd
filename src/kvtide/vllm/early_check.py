"""Options are checked before vLLM does anything: a mistyped one costs a second, not the time to load the weights.

vLLM tells a plug-in nothing of its configuration, and makes connectors when the weights are loaded. But it runs
plug-ins before its arguments become a configuration, so the method that does this looks at kvtide's options first. They
are checked once more, with all that is known then, when the connector is made.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from kvtide.errors import ConfigError
from kvtide.vllm.options import check_options

NAME = "KVTideConnector"
SEVERAL = "MultiConnector"
_ARGUMENTS = "vllm.engine.arg_utils"


class OptionsRefused(ConfigError):
    """Everything that is wrong with the options, a line each."""

    def __init__(self, errors: list[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.option, first.value, first.expected)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def check_before_start() -> None:
    """Let vLLM's arguments be checked before they become a configuration. Processes that have none do nothing."""
    module = sys.modules.get(_ARGUMENTS)
    arguments: Any = getattr(module, "EngineArgs", None)
    method = getattr(arguments, "create_engine_config", None)
    if method is not None and not hasattr(method, "checks_options"):
        arguments.create_engine_config = _checking(method)


def _checking(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checks(arguments: Any, *args: Any, **kwargs: Any) -> Any:
        check_arguments(arguments)
        return method(arguments, *args, **kwargs)

    checks.__dict__["checks_options"] = True  # a mark: it is not wrapped twice
    return checks


def check_arguments(arguments: Any) -> None:
    """Refuse options that cannot work. Tiers of several engines, which may run elsewhere, are left for later."""
    errors: list[ConfigError] = []
    for extra in _extras(getattr(arguments, "kv_transfer_config", None)):
        one_engine = getattr(arguments, "data_parallel_size", 1) == 1
        errors += check_options(extra if one_engine else {**extra, "tiers": []})[1]
    if errors:
        _say_it_without_traceback()
        raise OptionsRefused(errors)


def _extras(config: Any) -> Iterator[Mapping[str, object]]:
    """Find kvtide's options: in the configuration of its connector, alone or among several."""
    name, extra = _get(config, "kv_connector"), _get(config, "kv_connector_extra_config") or {}
    if name == SEVERAL and isinstance(extra, Mapping):
        children = extra.get("connectors")
        for child in children if isinstance(children, list) else ():
            yield from _extras(child)
    elif name == NAME and isinstance(extra, Mapping):
        yield extra


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _say_it_without_traceback() -> None:
    """Let a process that ends by it say what is wrong and nothing else: nobody's code is at fault."""
    before = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, OptionsRefused):
            before(kind, error, traceback)
            return
        for line in str(error).splitlines():
            sys.stderr.write(f"kvtide: error: {line}\n")

    sys.excepthook = say

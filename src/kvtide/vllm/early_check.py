"""Options are checked before vLLM does anything: a mistyped one costs a second, not the time to load the weights.

vLLM tells a plug-in nothing of its configuration, and makes connectors when the weights are loaded. But it runs
plug-ins before its arguments become a configuration, so the method that does this looks at kvtide's options first, and
then, when it is known which engines run here, at what these need. All is checked once more when the connector is made.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from kvtide.errors import ConfigError
from kvtide.vllm.options import check_options
from kvtide.vllm.placement import placement_of

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
        config = method(arguments, *args, **kwargs)
        check_engines(config)
        return config

    checks.__dict__["checks_options"] = True  # a mark: it is not wrapped twice
    return checks


def check_arguments(arguments: Any) -> None:
    """Refuse options that cannot work. Tiers of several engines wait for `check_engines`."""
    errors: list[ConfigError] = []
    for extra in _extras(getattr(arguments, "kv_transfer_config", None)):
        one_engine = getattr(arguments, "data_parallel_size", 1) == 1
        errors += check_options(extra if one_engine else {**extra, "tiers": []})[1]
    _refuse(errors)


def check_engines(config: Any) -> None:
    """Refuse what the engines of this machine cannot have, or cannot do with vLLM's other settings."""
    errors: dict[str, ConfigError] = {}  # by text: engines mostly say the same
    for extra in _extras(config.kv_transfer_config):
        errors |= {str(error): error for error in _wrong_here(extra, config)}
    _refuse(list(errors.values()))


def _wrong_here(extra: Mapping[str, object], config: Any) -> Iterator[ConfigError]:
    # These import much, which processes without kvtide's options need not.
    from kvtide.vllm.executors import refuse_unheard_ranks  # noqa: PLC0415 (they import vLLM, which imports us)
    from kvtide.vllm.node_namespace import refuse_node  # noqa: PLC0415 (they import vLLM, which imports us)
    from kvtide.vllm.tiers import refuse_unstable_keys  # noqa: PLC0415 (they import vLLM, which imports us)

    parallel = config.parallel_config
    in_use = config.cache_config.enable_prefix_caching
    if in_use:
        yield from _refusal(refuse_unheard_ranks, config)
    if "ray" in (parallel.distributed_executor_backend, parallel.data_parallel_backend):
        return  # Ray places engines where it likes
    placement, first = placement_of(parallel), parallel.data_parallel_rank
    for engine in range(first, first + parallel.data_parallel_size_local):
        options, errors = check_options(extra, placement=replace(placement, engine=engine))
        yield from errors
        if options is not None and in_use:
            yield from filter(None, [options.too_much(parallel.world_size)])
            if options.tiers:
                types = [tier.type for tier in options.tiers]
                yield from _refusal(refuse_unstable_keys, "tiers", types, config)
            if options.node is not None:
                yield from _refusal(refuse_node, options.node, config)


def _refusal(check: Callable[..., None], *what: object) -> list[ConfigError]:
    try:
        check(*what)
    except ConfigError as error:
        return [error]
    return []


def _refuse(errors: list[ConfigError]) -> None:
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

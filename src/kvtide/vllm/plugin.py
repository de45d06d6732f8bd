"""The entry point of the group `vllm.general_plugins`: makes vLLM know the connector by its name alone."""

from __future__ import annotations

from kvtide.vllm.early_check import NAME, check_before_start
from kvtide.vllm.shown_arguments import hide_secrets

__all__ = ["NAME", "register"]


def register() -> None:
    """Register the connector with vLLM. vLLM calls this in every process, and sometimes more than once."""
    from vllm.config import KVTransferConfig  # noqa: PLC0415 (only vLLM calls this)
    from vllm.distributed.kv_transfer.kv_connector.factory import (  # noqa: PLC0415 (only vLLM calls this)
        KVConnectorFactory,
    )

    check_before_start()
    hide_secrets(KVTransferConfig)
    try:
        KVConnectorFactory.register_connector(NAME, "kvtide.vllm.connector", NAME)
    except ValueError:  # it is known already
        return

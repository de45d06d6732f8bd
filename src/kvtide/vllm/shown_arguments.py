"""vLLM prints its arguments when it starts, kvtide's options among them: passwords in them are hidden."""

from __future__ import annotations

from copy import copy
from typing import Any

from kvtide.redaction import without_secrets


def hide_secrets(config: Any) -> None:
    """Let objects of vLLM's `KVTransferConfig` be shown without secrets. What they hold stays as it is."""
    whole = config.__repr__
    if hasattr(whole, "hides_secrets"):
        return

    def shown(self: Any) -> str:
        safe = copy(self)
        safe.kv_connector_extra_config = without_secrets("", self.kv_connector_extra_config)
        return str(whole(safe))

    shown.__dict__["hides_secrets"] = True  # a mark: it is not wrapped twice
    config.__repr__ = shown  # vLLM asks nobody before it prints them

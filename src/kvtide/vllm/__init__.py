"""kvtide in vLLM: `--kv-transfer-config '{"kv_connector": "KVTideConnector", "kv_role": "kv_both"}'`.

vLLM finds the connector by name through the plug-in entry point, or by `"kv_connector_module_path": "kvtide.vllm"`.
Importing this package imports neither vLLM nor torch; asking it for `KVTideConnector` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtide.vllm.connector import KVTideConnector

__all__ = ["KVTideConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector when it is asked for."""
    if name == "KVTideConnector":
        from kvtide.vllm.connector import KVTideConnector  # noqa: PLC0415 (vLLM is imported only when needed)

        return KVTideConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

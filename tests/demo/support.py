"""Settings small enough for a run of all modes in about a second."""

from __future__ import annotations

from typing import Any

from kvtide.demo import DemoSettings


def tiny(**changes: Any) -> DemoSettings:
    """Three short conversations whose KV does not fit on the device together."""
    sizes: dict[str, Any] = {
        "conversations": 3,
        "turns": 3,
        "prompt_tokens": 48,
        "turn_tokens": 9,
        "output_tokens": 4,
        "concurrency": 1,
        "device_blocks": 12,
        "block_tokens": 8,
        "host": "8MiB",
    }
    return DemoSettings(**(sizes | changes))

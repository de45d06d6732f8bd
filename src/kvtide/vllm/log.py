"""kvtide's log lines in vLLM's log. vLLM shows only what is below its own name."""

from __future__ import annotations

from vllm.logger import init_logger

logger = init_logger("vllm.kvtide")

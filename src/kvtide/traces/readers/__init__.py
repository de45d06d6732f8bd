"""Readers, one file per format. `FORMATS` names them."""

from __future__ import annotations

from kvtide.traces.readers.base import REQUESTS_PER_S, LineReader, required_object
from kvtide.traces.readers.mooncake import MooncakeReader
from kvtide.traces.readers.openai_chat import OpenAIChatReader
from kvtide.traces.readers.vllm_log import WITHOUT_TOKENS, VLLMLogReader, looks_like_log

FORMATS: dict[str, type[LineReader]] = {
    "mooncake": MooncakeReader,
    "openai": OpenAIChatReader,
    "vllm": VLLMLogReader,
}

__all__ = [
    "FORMATS",
    "REQUESTS_PER_S",
    "WITHOUT_TOKENS",
    "LineReader",
    "MooncakeReader",
    "OpenAIChatReader",
    "VLLMLogReader",
    "looks_like_log",
    "required_object",
]

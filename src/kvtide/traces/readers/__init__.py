"""Readers, one file per format. `FORMATS` names them."""

from __future__ import annotations

from kvtide.traces.readers.base import LineReader
from kvtide.traces.readers.mooncake import MooncakeReader
from kvtide.traces.readers.openai_chat import OpenAIChatReader
from kvtide.traces.readers.vllm_log import VLLMLogReader

FORMATS: dict[str, type[LineReader]] = {
    "mooncake": MooncakeReader,
    "openai": OpenAIChatReader,
    "vllm": VLLMLogReader,
}

__all__ = ["FORMATS", "LineReader", "MooncakeReader", "OpenAIChatReader", "VLLMLogReader"]

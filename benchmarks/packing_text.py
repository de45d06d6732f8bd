"""What a real model says with and without packing, compared as text. Needs vLLM; its CPU build will do.

    python benchmarks/packing_text.py [--json] [--tokens N]       a minute on two cores
    python benchmarks/packing_text.py --small [--json]            one question, a short answer: shows that it works

SmolLM2-135M-Instruct (see `real_model`) answers questions about this project's own documents, twice: the second time
their KV comes back from the host. First with `packing` off, then on; all answers have to be the same, letter by letter.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from gguf_file import Gguf
from packing import ROOT
from real_model import NAME, Tokenizer, model_file
from real_model_folder import write_folder

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

QUESTIONS = {
    "README.md": "What is kvtide?",
    "docs/users/vllm.md": "Which option says how much host memory is used?",
    "docs/operators/tiers.md": "Where can blocks be kept below host memory?",
}
BLOCK_TOKENS = 32
_SPECIAL = re.compile(r"(<\|im_start\|>|<\|im_end\|>)")


def prompts(tokenizer: Tokenizer, tokens: int, questions: int) -> list[list[int]]:
    """Return questions about documents, of which the model reads so many tokens."""
    found = []
    for name, question in list(QUESTIONS.items())[:questions]:
        document = tokenizer.encode((ROOT / name).read_text(encoding="utf-8"))[:tokens]
        before = _encode(tokenizer, "<|im_start|>user\n")
        after = _encode(tokenizer, f"\n\n{question}<|im_end|>\n<|im_start|>assistant\n")
        found.append(before + document + after)
    return found


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    parts = (part for part in _SPECIAL.split(text) if part)
    return [id_ for part in parts for id_ in (tokenizer.special(part) or tokenizer.encode(part))]


def answers(folder: Path, packing: str, asked: list[list[int]], answer_tokens: int) -> dict[str, Any]:
    """Return what an engine says the first and the second time, as tokens, and what kvtide has done."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 (the environment has to be set)
    from vllm.distributed import cleanup_dist_env_and_memory  # noqa: PLC0415
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415

    connector = {
        "kv_connector": "KVTideConnector",
        "kv_connector_module_path": "kvtide.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "256MiB", "packing": packing},
    }
    longest = max(map(len, asked)) + answer_tokens
    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        block_size=BLOCK_TOKENS,
        max_model_len=longest,
        num_gpu_blocks_override=len(asked) * (longest // BLOCK_TOKENS + 2),
        enforce_eager=True,
        disable_log_stats=False,
        kv_transfer_config=connector,
    )
    how = SamplingParams(max_tokens=answer_tokens, temperature=0, detokenize=False)
    inputs: Any = [{"prompt_token_ids": ids} for ids in asked]
    scheduler: Any = llm.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    said: dict[str, Any] = {"turns": [], "cached_tokens": []}
    for _ in range(2):
        outputs = [llm.generate([one], how, use_tqdm=False)[0] for one in inputs]
        said["turns"].append([list(output.outputs[0].token_ids) for output in outputs])
        said["cached_tokens"].append([output.num_cached_tokens for output in outputs])
        while scheduler.has_requests():
            llm.llm_engine.step()
        assert type(pool).reset_prefix_cache(pool)  # the device's alone: what comes back comes from the host
    stored = get_kv_transfer_group()._worker.copy_stats().store
    said |= {"stored_bytes": stored.bytes, "saved_bytes": stored.saved_bytes, "unpacked": stored.unpacked_blocks}
    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--tokens", type=int, default=512, help="of each document")
    parser.add_argument("--folder", type=Path, help="where the model is kept; the user's cache by default")
    asked = parser.parse_args()
    file = model_file(asked.folder)
    tokenizer = Tokenizer(Gguf(file))
    answer_tokens = 12 if asked.small else 48
    questions = prompts(tokenizer, 120, 1) if asked.small else prompts(tokenizer, asked.tokens, len(QUESTIONS))
    with tempfile.TemporaryDirectory() as folder:
        write_folder(file, Path(folder))
        # Off comes first: vLLM's CPU build does not start once numba, which packs, is imported.
        off, on = (answers(Path(folder), packing, questions, answer_tokens) for packing in ("off", "on"))
    texts = [[tokenizer.decode(ids) for ids in turn] for one in (off, on) for turn in one["turns"]]
    same = all(turn == texts[0] for turn in texts)
    result = {
        "model": NAME,
        "same_text": same,
        "answers": texts[0],
        "cached_tokens": {"off": off["cached_tokens"], "on": on["cached_tokens"]},
        "stored_bytes": {"off": off["stored_bytes"], "on": on["stored_bytes"]},
        "unpacked_blocks": on["unpacked"],
    }
    if asked.json:
        print(json.dumps(result))
    else:
        for question, answer in zip(QUESTIONS.values(), texts[0], strict=False):
            print(f"> {question}\n{answer.strip()}\n")
        print(f"tokens from the host the second time: {on['cached_tokens'][1]} of {list(map(len, questions))}")
        print(f"bytes to the host: {off['stored_bytes']:,} off, {on['stored_bytes']:,} on")
        print("every answer is the same, with packing and without" if same else "NOT THE SAME TEXT")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

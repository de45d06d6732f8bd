"""What the benchmarks of whole vLLM engines share: model, connectors, and a process per engine."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtide.copy.memory_left import memory_left
from kvtide.options import parse_size

GIB = 1 << 30
PATIENCE_S = 600.0
PRELOAD = [
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.model_executor.models.llama",
]
"""Imported once, in a process from which all others are forked before they touch the GPU."""
CONNECTORS: dict[str, dict[str, Any]] = {
    "none": {},
    "device-cache": {},
    "kvtide-eager": {
        "kv_connector": "KVTideConnector",
        "module": "kvtide.vllm",
        "host": "host",
        "options": {"mode": "eager"},
    },
    "kvtide-lazy": {
        "kv_connector": "KVTideConnector",
        "module": "kvtide.vllm",
        "host": "host",
        "options": {"mode": "lazy"},
    },
    "kvtide-node": {
        "kv_connector": "KVTideConnector",
        "module": "kvtide.vllm",
        "host": "",
        "options": {"mode": "eager"},
    },
    "offloading": {"kv_connector": "OffloadingConnector", "options": {}},
    "simple-eager": {"kv_connector": "SimpleCPUOffloadConnector", "options": {"lazy_offload": False}},
    "simple-lazy": {"kv_connector": "SimpleCPUOffloadConnector", "options": {"lazy_offload": True}},
    "lmcache": {"kv_connector": "LMCacheConnectorV1", "host": "", "options": {}},
    "lmcache-server": {
        "kv_connector": "LMCacheMPConnector",
        "module": "lmcache.integration.vllm.lmcache_mp_connector",  # vLLM's own one of that name starts no server
        "host": "",
        "options": {"lmcache.mp.autostart": True, "lmcache.mp.save_decode_cache": True, "lmcache.mp.port": 15_555},
    },
}
PEERS = ("offloading", "simple-eager", "simple-lazy", "lmcache", "lmcache-server")
"""The modes of others that offload."""
ENGINE_BYTES = 8 * GIB
"""Of host memory that an engine takes beside its host tier, about: four of them on an H200 took 40 GiB."""

NODE = "KVTIDE_BENCHMARK_NODE"
"""In the environment: the socket of the node for `kvtide-node`, which `--node` names."""


@dataclass(frozen=True)
class Model:
    """The shape of a Llama with random weights. As it stands: Llama-3.1-8B."""

    hidden: int = 4096
    mlp: int = 14_336
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    vocab: int = 128_256
    dtype: str = "bfloat16"

    @property
    def token_bytes(self) -> int:
        """Bytes of the KV of one token."""
        return self.layers * 2 * self.kv_heads * (self.hidden // self.heads) * 2


SMALL_MODEL = Model(hidden=256, mlp=256, layers=2, heads=4, kv_heads=2, vocab=512)
"""For vLLM's CPU build."""


def write_model(model: Model, folder: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.hidden,
        "intermediate_size": model.mlp,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.hidden // model.heads,
        "vocab_size": model.vocab,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": model.dtype,
    }
    (folder / "config.json").write_text(json.dumps(config))


GRAPHS: dict[str, dict[str, Any]] = {
    "all": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL", "max_cudagraph_capture_size": 512}},
    "decode": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}},
    "none": {"enforce_eager": True},
}
"""What runs as CUDA graphs. Nothing is compiled: that takes a minute, and changes neither copies nor their order."""


def engine_arguments(
    mode: str, model: Model, folder: Path, *, device_tokens: int, host_bytes: int, graphs: str, small: bool
) -> dict[str, Any]:
    """Return what an engine is made with in a mode, which may have options of its own: `kvtide-eager+host=8GiB`."""
    name, *extra = mode.split("+")
    more = dict(option.split("=", 1) for option in extra)
    host_bytes = parse_size("host", more.pop("host")) if "host" in more else host_bytes
    if name == "kvtide-node":
        more["node"] = os.environ[NODE]
    block_tokens = 32 if small else 16
    blocks = device_tokens // block_tokens + 1
    arguments: dict[str, Any] = {
        "model": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": model.dtype,
        "block_size": block_tokens,
        "max_num_seqs": 64,
        "num_gpu_blocks_override": blocks,
        "enable_prefix_caching": True,
        **GRAPHS["none" if small else graphs],
    }
    connector = CONNECTORS[name]
    if connector:
        options = {connector.get("host", "cpu_bytes_to_use"): host_bytes, **connector["options"]}
        options |= lmcache_options(name, options.pop("", 0) / GIB)
        options |= more
        arguments["kv_transfer_config"] = {
            "kv_connector": connector["kv_connector"],
            "kv_role": "kv_both",
            "kv_connector_extra_config": options,
            **({"kv_connector_module_path": connector["module"]} if "module" in connector else {}),
        }
    if not small:
        # Others use the GPU too, so its free memory tells nothing.
        arguments["kv_cache_memory_bytes"] = blocks * block_tokens * model.token_bytes
        arguments["gpu_memory_utilization"] = 0.2
    return arguments


def tier_bytes(mode: str, host_bytes: int) -> int:
    """Return the size of a mode's own host tier; 0 if it has none."""
    name, *extra = mode.partition("@")[0].split("+")
    if name in {"none", "device-cache", "kvtide-node"}:
        return 0
    own = [option.removeprefix("host=") for option in extra if option.startswith("host=")]
    return parse_size("host", own[-1]) if own else host_bytes


def say_what_does_not_fit(modes: Sequence[str], host_bytes: int, kv_bytes: int) -> None:
    """Say of a group, before it starts, which host tiers are smaller than the KV, and whether memory will do for all.

    Packed KV may still fit into a tier that is said to be smaller.
    """
    tiers = {mode: tier_bytes(mode, host_bytes) for mode in modes}
    for mode, size in tiers.items():
        if 0 < size < kv_bytes:
            sizes = f"{size / GIB:.1f} GiB of host memory, and there are {kv_bytes / GIB:.1f} GiB of KV"
            say(f"{mode} has {sizes}: some of it is computed again")
    needed, left = sum(tiers.values()) + len(modes) * ENGINE_BYTES, memory_left().nbytes
    if needed > left:
        parts = f"host tiers of {sum(tiers.values()) / GIB:.1f} GiB and {len(modes)} engines"
        say(f"{','.join(modes)}: {parts} take about {needed / GIB:.1f} GiB, and {left / GIB:.1f} are left")


def lmcache_options(mode: str, host_gib: float) -> dict[str, Any]:
    """Return how LMCache is told the size of its host tier: in process by its environment."""
    if mode.startswith("lmcache"):
        check_lmcache()
    if mode == "lmcache":
        os.environ |= {
            "LMCACHE_LOCAL_CPU": "True",
            "LMCACHE_MAX_LOCAL_CPU_SIZE": str(host_gib),
            "LMCACHE_SAVE_DECODE_CACHE": "True",
        }
    if mode == "lmcache-server":
        return {"lmcache.mp.autostart.server_args": f"--l1-size-gb {host_gib:.0f} --eviction-policy LRU"}
    return {}


def check_lmcache() -> None:
    """Raise what keeps LMCache from copying. Its own import says no more than that a name, `device_ops`, is missing."""
    look = "from lmcache.v1.platform import resolve_device_ops, torch_device_type as d; resolve_device_ops(d)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    if done.returncode:
        raise FailedError(f"LMCache cannot be used here: {done.stderr.strip()[-600:]}")


def randomise(worker: Any) -> None:
    """Give the model weights whose output depends on the KV; vLLM's dummy weights are next to zero."""
    import torch  # noqa: PLC0415 (only in the processes that run vLLM)

    model = worker.model_runner.model
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(0)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.02, generator=generator)


def read_machine(_worker: Any) -> dict[str, str]:
    """Return what a worker runs on."""
    import torch  # noqa: PLC0415 (only in the processes that run vLLM)
    import vllm  # noqa: PLC0415

    return {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU", "vllm": vllm.__version__}


def read_counters(_worker: Any) -> dict[str, Any]:
    """Return what kvtide has counted. Runs where scheduler and worker are."""
    import gc  # noqa: PLC0415 (only in the processes that run vLLM)

    from kvtide.vllm.scheduler_side import SchedulerSide  # noqa: PLC0415 (only where kvtide is used)
    from kvtide.vllm.worker_side import WorkerSide  # noqa: PLC0415

    found: dict[str, Any] = {}
    gc.unfreeze()  # vLLM hides what it has made at start
    for thing in gc.get_objects():
        if isinstance(thing, SchedulerSide):
            metrics = thing.manager.metrics
            found |= {name: getattr(metrics, name) for name in ("stored_blocks", "loaded_blocks", "evicted_blocks")}
            for name in ("not_stored", "not_loaded"):
                found[name] = {reason.value: count for reason, count in getattr(metrics, name).items()}
        elif isinstance(thing, WorkerSide):
            stats = thing.copy_stats()
            for name in ("store", "load"):
                moved = getattr(stats, name)
                found[f"{name}_gb"] = moved.bytes / 1e9
                found[f"{name}_gbps"] = moved.bytes / max(moved.busy_s, 1e-9) / 1e9
                found[f"{name}_packing_saved_bytes"] = moved.saved_bytes
            found["unpacked_blocks"] = stats.store.unpacked_blocks
            found["failed"] = stats.failed
    return found


def wait_for_host(_worker: Any) -> None:
    """Wait until no more of kvtide's host memory becomes ready: it is pinned in the background."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415 (only where vLLM runs)

    engine, before = get_kv_transfer_group()._worker._engine, -1
    while (ready := engine.slots_ready() or 0) != before:
        before = ready
        time.sleep(1)


def copy_gbps(orders: Any) -> None:
    """Say the GB/s of one large pinned copy to the GPU; 0 without one."""
    import torch  # noqa: PLC0415 (only in the processes that need it)

    rates = [0.0]
    if torch.cuda.is_available():
        host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
        device = torch.empty_like(host, device="cuda")
        rates = []
        for _ in range(9):
            torch.cuda.synchronize()
            begin_s = time.perf_counter()
            device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            rates.append(GIB / (time.perf_counter() - begin_s) / 1e9)
    orders.send([statistics.median(rates)])


def say(line: str) -> None:
    """Tell how it goes."""
    print(f"==> {line}", file=sys.stderr, flush=True)


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as an exception does, so that engines are ended, too."""

    def end(*_: Any) -> None:
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


class FailedError(Exception):
    """A mode did not do what it was told."""


def _in_own_group(target: Callable[..., None], *arguments: Any) -> None:
    os.setpgid(0, 0)
    target(*arguments)


class Child:
    """A process that runs one mode, with all processes that it starts."""

    def __init__(self, context: Any, target: Callable[..., None], *arguments: Any) -> None:
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=_in_own_group, args=(target, *arguments, theirs))
        self._process.start()
        self._is_killed = False
        theirs.close()

    def is_alive(self) -> bool:
        """Whether it is there."""
        return bool(self._process.is_alive())

    def _signal(self, number: int) -> None:
        if self.is_alive():
            with suppress(ProcessLookupError):  # it has not come so far as to be a group
                os.killpg(self._process.pid, number)

    def alone(self, all_of_them: Iterable[Child]) -> Child:
        """Pause all others: some are busy while they wait."""
        for other in all_of_them:
            other._signal(signal.SIGCONT if other is self else signal.SIGSTOP)
        return self

    def go_on(self) -> None:
        """Let it run again after a pause."""
        self._signal(signal.SIGCONT)

    def order(self, phase: Any) -> Any:
        """Let it run a phase; None: let it come to its end."""
        self.begin(phase)
        return self.answer()

    def begin(self, phase: Any) -> None:
        """Let it run a phase, and do not wait for it."""
        try:
            self._orders.send(phase)
        except OSError as error:
            raise FailedError("it ended") from error

    def kill(self) -> None:
        """End it and all that it has started, as nothing but the system can."""
        if self._is_killed:  # by now its number may be somebody else's
            return
        with suppress(ProcessLookupError):  # nobody is left in its group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(30)
        self._is_killed = True

    def answer(self) -> Any:
        """Return what it has to say."""
        try:
            said = self._orders.recv() if self._orders.poll(PATIENCE_S) else "no answer"
        except (EOFError, ConnectionResetError):  # reset: it was killed before it had read all that it was told
            said = "it ended"
        if isinstance(said, str):
            raise FailedError(said)
        return said

    def end(self) -> None:
        """Wait for its end. What it has started and not ended itself is killed: it would keep memory of the GPU."""
        self._process.join(30)
        self.kill()

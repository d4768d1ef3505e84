"""Who answers in a race: our engine in several modes, and the peers. Several contestants may share a worker."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environments import interpreter
from benchmarks.peers.gguf_files import gguf_files
from benchmarks.peers.workers.eyrie import SCHEDULE
from benchmarks.peers.workers.transformers_generate import ASSISTED, LOOKUP_TOKENS
from replicas.errors import ConfigError
from replicas.models.source import resolve_model
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.settings import ModelSettings

WORKERS = "benchmarks.peers.workers"
OURS = "Eyrie, its K schedule"
"""Whom all others are compared with."""
PEERS = ("transformers", "transformers-assisted", "llama.cpp-f16", "llama.cpp-q4_1", "vllm", "vllm-eagle3")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A process that loads one model once."""

    environment: str | None
    """A peer's; None: ours."""
    module: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A row of the table."""

    label: str
    worker: WorkerSpec
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """What decides who takes part."""

    config: Path
    model: ModelSettings
    ks: Sequence[int]
    peers: Sequence[str]
    assistant: str | None = None
    """Folder of a small model with the target's tokenizer, for transformers."""


def eyrie_k(k: int) -> str:
    """The label of our engine with a fixed K."""
    return f"Eyrie, K={k}"


def contestants(entry: Entry) -> list[Contestant]:
    """Ours first, then the peers as they are named. Raises ConfigError for a peer that is unknown, or has no model."""
    strange = [name for name in entry.peers if name not in PEERS]
    if strange:
        raise ConfigError(f"--peers: got {strange[0]!r}; allowed: {', '.join(PEERS)}")
    speculative = entry.model.speculative_config
    largest = max([*entry.ks, speculative.num_speculative_tokens if speculative else 0])
    own = WorkerSpec(None, f"{WORKERS}.eyrie", (str(entry.config.resolve()), entry.model.id, str(largest)))
    ours = [Contestant(OURS, own, SCHEDULE), *(Contestant(eyrie_k(k), own, str(k)) for k in entry.ks)]
    return [*ours, *(_peer(name, entry) for name in entry.peers)]


def _peer(name: str, entry: Entry) -> Contestant:
    config = with_local_checkpoints(entry.model.engine_config)
    if name.startswith("llama.cpp"):
        own, f16 = gguf_files(config.model)
        path = f16 if name == "llama.cpp-f16" else own
        label = "llama.cpp, F16" if name == "llama.cpp-f16" else "llama.cpp, the model's own GGUF (Q4_1)"
        return Contestant(label, WorkerSpec("llama.cpp", f"{WORKERS}.llama_cpp_python", (str(path),)))
    folder = str(resolve_model(config.model))
    if name.startswith("transformers"):
        assistant = () if entry.assistant is None else (str(Path(entry.assistant).resolve()),)
        worker = WorkerSpec("transformers", f"{WORKERS}.transformers_generate", (folder, *assistant))
        if name == "transformers":
            return Contestant("transformers `generate`, fp32", worker)
        by = "a small model" if assistant else f"prompt lookup, {LOOKUP_TOKENS} tokens"
        return Contestant(f"transformers assisted generation ({by}), fp32", worker, ASSISTED)
    if name == "vllm":
        return Contestant("vLLM, CPU, fp32, K=0", WorkerSpec("vllm", f"{WORKERS}.vllm_cpu", (folder,)))
    speculative = config.speculative_config
    if speculative is None or speculative.method != "eagle3" or speculative.model is None:
        raise ConfigError(f"--peers: vllm-eagle3 drafts with the config's EAGLE3 head, and {entry.model.id} has none")
    k = speculative.num_speculative_tokens
    head = str(resolve_model(speculative.model))
    worker = WorkerSpec("vllm", f"{WORKERS}.vllm_cpu", (folder, head, str(k)))
    return Contestant(f"vLLM, CPU, fp32, EAGLE3 with our head, K={k}", worker)


def command_of(worker: WorkerSpec, named: dict[str, Path]) -> list[str]:
    """How `worker` is started. Raises ConfigError where its environment cannot be had."""
    python = sys.executable if worker.environment is None else str(interpreter(worker.environment, named))
    return [python, "-m", worker.module, *worker.arguments]

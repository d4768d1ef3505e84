"""From our settings to vLLM's engine arguments."""

from collections.abc import Collection
from itertools import groupby
from pathlib import Path
from typing import Any

from replicas.errors import ConfigError
from replicas.models.source import resolve_model
from replicas.scheduling.k_policy import KPolicy, allowed_k
from replicas.vllm_engine.config import PER_BATCH_SIZE, VllmConfig

REQUEST_METRICS = "per_request_spec_decode_metrics"


def k_ranges(policy: KPolicy, max_num_seqs: int, allowed: Collection[int]) -> list[list[int]]:
    """`policy` as vLLM's num_speculative_tokens_per_batch_size. Raises ConfigError for a K that is not allowed."""
    ks = [(size, allowed_k(policy, size, allowed)) for size in range(1, max_num_seqs + 1)]
    ranges: list[list[int]] = []
    for k, group in groupby(ks, key=lambda pair: pair[1]):
        sizes = [size for size, _ in group]
        ranges.append([sizes[0], sizes[-1], k])
    return ranges


def speculative_config(config: VllmConfig, policy: KPolicy) -> dict[str, Any] | None:
    """VLLM's, or None. Raises CheckpointError or ConfigError."""
    speculative = config.speculative_config
    if speculative is None:
        return None
    found: dict[str, Any] = {
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_speculative_tokens,
    }
    if speculative.model is not None:
        found["model"] = str(resolve_model(speculative.model))
    if speculative.method == "ngram":
        found["prompt_lookup_min"], found["prompt_lookup_max"] = speculative.lookup_range
    ranges = k_ranges(policy, config.max_num_seqs, speculative.speculative_tokens)
    if [k for _, _, k in ranges] != [speculative.num_speculative_tokens]:
        found[PER_BATCH_SIZE] = ranges
    return found | config.speculative_args


def engine_arguments(config: VllmConfig, folder: Path, policy: KPolicy, known: Collection[str]) -> dict[str, Any]:
    """Those of `config` with the model in `folder`; `known` are the names that the installed vLLM has.

    Raises CheckpointError or ConfigError: an unknown name is refused by name.
    """
    strange = sorted(name for name in config.engine_args if name not in known)
    if strange:
        raise ConfigError(
            f"engine_args holds {', '.join(strange)}; allowed: arguments that vllm.AsyncEngineArgs has in this version"
        )
    arguments: dict[str, Any] = {
        "model": str(folder),
        "dtype": config.dtype,
        "tensor_parallel_size": config.tensor_parallel_size,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "enable_prefix_caching": config.enable_prefix_caching,
        # Our own logger hears of each step; vLLM's default ones print and count for themselves.
        "disable_log_stats": True,
    }
    if config.block_size is not None:
        arguments["block_size"] = config.block_size
    speculative = speculative_config(config, policy)
    if speculative is not None:
        arguments["speculative_config"] = speculative
        if REQUEST_METRICS in known:
            arguments[REQUEST_METRICS] = "detailed"
    if config.uses_placement_group:
        # vLLM finds the placement group that the replica runs in, and makes none.
        arguments["distributed_executor_backend"] = "ray"
    return arguments | config.engine_args

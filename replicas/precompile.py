"""Lists the programs that a config's engines compile, and fills the compile cache with them ahead of time.

    python -m replicas.precompile configs/inf2_eagle3.yaml --list
    NEURON_COMPILE_CACHE_URL=s3://bucket/prefix python -m replicas.precompile configs/inf2_eagle3.yaml

A replica that starts with the same cache, config and SDK then compiles nothing. XLA-CPU tested, Neuron untested.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from replicas.config_file import NamedEngine, read_engines
from replicas.devices.environment import CACHE_VARIABLE, Environment, probe
from replicas.devices.memory_plan import gib
from replicas.devices.neuron_compile import CacheCount, CacheFiller, NeuronParallelCompile
from replicas.devices.neuron_hardware import PROGRAM_BYTES
from replicas.devices.start_checks import neuron_findings, require
from replicas.engine import build_engine
from replicas.engine_memory import plan_config
from replicas.engine_programs import compiled_programs
from replicas.errors import ConfigError, EyrieError
from replicas.runner.programs import ProgramKey
from replicas.scheduling.k_policy import DraftFeedback

FillerBuilder = Callable[[str], CacheFiller]
"""From the cache's URL."""


class PlainDecoding:
    """The K policy of an engine that only warms up."""

    def num_speculative_tokens(self, batch_size: int) -> int:
        """K = 0, for which there are always programs."""
        return 0

    def observe(self, feedback: DraftFeedback) -> None:
        """Nothing is drafted."""


def describe(program: ProgramKey, block_size: int) -> str:
    """One line of the list."""
    kind = f"prompt chunk of {program.tokens:>5}" if program.is_prefill else f"decode batch of {program.batch:>4}"
    extras = [
        name
        for name, is_there in (
            (program.variant.sampling, program.variant.sampling != "greedy"),
            ("biases", program.variant.has_biases),
            ("penalties", program.variant.has_penalties),
            ("logprobs", program.variant.has_logprobs),
            ("prompt logprobs", program.variant.has_prompt_logprobs),
            ("masks", program.variant.has_masks),
        )
        if is_there
    ]
    context = program.context_blocks * block_size
    return f"{kind}  K {program.num_speculative_tokens:>2}  context {context:>6}  {', '.join(extras) or 'greedy'}"


def listing(engine: NamedEngine) -> Iterable[str]:
    """Every program of `engine`, their number, and what they take."""
    programs = compiled_programs(engine.config)
    for program in programs:
        yield describe(program, engine.config.block_size)
    size = gib(len(programs) * PROGRAM_BYTES)
    yield (
        f"{engine.name}: {len(programs)} programs; at {PROGRAM_BYTES // 2**20} MiB each (assumed) {size} GiB "
        f"in the cache and on every core"
    )


def fill_cache(
    engine: NamedEngine, path: Path, environment: Environment, workers: int, build_filler: FillerBuilder
) -> None:
    """Compile every program of `engine`, which stands in `path`. Raises ConfigError or CheckpointError."""
    config = engine.config
    programs = len(compiled_programs(config))
    plan_config(config).check()
    require(neuron_findings(environment, config.tensor_parallel_size, programs))
    url = environment.variables.get(CACHE_VARIABLE)
    if url is None:
        raise ConfigError(f"{CACHE_VARIABLE} is not set: name the folder, or s3://bucket/prefix, that is to be filled")
    filler = build_filler(url)
    command = [sys.executable, "-m", "replicas.precompile", str(path), "--model", engine.name]
    command += ["--device", config.device, "--run-programs"]
    # The cache may hold other graphs besides: the bars may end a little above or, on a warm start, below.
    with (
        tqdm(total=programs, desc=f"{engine.name}: traced", unit="program", position=0) as traced,
        tqdm(total=programs, desc=f"{engine.name}: compiled", unit="program", position=1) as compiled,
    ):

        def show(count: CacheCount) -> None:
            traced.update(count.traced - traced.n)
            compiled.update(count.compiled - compiled.n)

        filler.fill(command, workers, show)


def run_programs(engine: NamedEngine) -> int:
    """Build `engine` and run every program once, as at the start of a replica; returns their number."""
    return build_engine(engine.config, PlainDecoding()).warm_up()


def main(arguments: Sequence[str] | None = None, build_filler: FillerBuilder = NeuronParallelCompile) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m replicas.precompile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path, help="a Serve YAML, or the keys of one engine")
    parser.add_argument(
        "--list", action="store_true", help="print the programs, their number and size; compile nothing"
    )
    parser.add_argument("--model", help="id of the model in the config; all by default")
    parser.add_argument("--device", choices=["cpu", "neuron", "xla-cpu"], help="instead of the config's")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="compilers at once; all cores by default"
    )
    parser.add_argument("--run-programs", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    try:
        engines = chosen(read_engines(args.config), args.model, args.device)
        for engine in engines:
            if args.list:
                print("\n".join(listing(engine)))
            elif args.run_programs:
                print(f"{engine.name}: {run_programs(engine)} programs ran")
            elif engine.config.device == "xla-cpu":
                print(f"{engine.name}: {run_programs(engine)} programs compiled; XLA's CPU client keeps none of them")
            elif engine.config.device == "cpu":
                print(f"{engine.name}: device 'cpu' compiles nothing, so there is nothing to do (--device neuron?)")
            else:
                fill_cache(engine, args.config, probe(), args.workers, build_filler)
    except EyrieError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def chosen(engines: Sequence[NamedEngine], name: str | None, device: str | None) -> list[NamedEngine]:
    """Those of `engines` that are called `name`, on `device` if that is given. Raises ConfigError if there is none."""
    found = [engine for engine in engines if name in (None, engine.name)]
    if not found:
        raise ConfigError(f"no model is called {name!r}; there are {', '.join(engine.name for engine in engines)}")
    return [NamedEngine(e.name, e.config.model_copy(update={"device": device or e.config.device})) for e in found]


if __name__ == "__main__":
    sys.exit(main())

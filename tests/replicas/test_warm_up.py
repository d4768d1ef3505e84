"""After warm-up no program is new, whatever runs; and the shapes that pad a batch never change what it says."""

import random
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from replicas.config import EngineConfig, SpeculativeConfig
from replicas.engine import build_engine
from replicas.errors import ConfigError, EyrieError
from replicas.request import GenerationRequest, SamplingParams
from replicas.runner.shape_buckets import ShapeBuckets
from tests.reference.compiling_backend import CompilingBackend, recorded_signatures
from tests.reference.hand_built_engine import Answer, Bench, TinyTarget, generate, greedy_request, run_steps
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.tiny_checkpoints import END

TEXT = tuple(random.Random(0).randrange(END) for _ in range(80))
ASKS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.7},
    {"temperature": 1.2, "top_k": 9, "frequency_penalty": 0.6},
    {"repetition_penalty": 1.4},
    {"logit_bias": ((7, 3.0),)},
    {"min_tokens": 3, "ignore_eos": False, "stop_token_ids": tuple(range(0, END, 9))},
    {"logprobs": 3},
    {"prompt_logprobs": 2},
    {"temperature": 0.7, "min_p": 0.05, "presence_penalty": 0.4, "logit_bias": ((3, -2.0),), "logprobs": 0},
]


def asked(request_id: str, chance: random.Random) -> GenerationRequest:
    """Any of ASKS; prompts begin alike half of the time."""
    length = chance.choice([chance.randint(1, 12), chance.randint(1, 60)])
    prompt = TEXT[:length] if chance.random() < 0.5 else tuple(chance.randrange(END) for _ in range(length))
    cap = chance.choice([None, None, 0, 1, 3, 5])
    sampling = {"seed": chance.randrange(99), "num_speculative_tokens": cap} | chance.choice(ASKS)
    return greedy_request(request_id, prompt, chance.randint(1, 30), **sampling)


@dataclass(frozen=True)
class Warm:
    """An engine on a device that compiles, after warm-up, and an eager one without drafts."""

    bench: Bench
    signatures: set[Any]
    """Of the programs called so far."""
    num_programs: int
    plain: Bench


@pytest.fixture(scope="module", params=[True, False], ids=["prefix cache", "no prefix cache"])
def warm(request: pytest.FixtureRequest, tiny_folder: Path, tiny_head: Path) -> Generator[Warm]:
    target = TinyTarget(tiny_folder, backend=CompilingBackend("float32", num_threads=1))
    config = target.config(
        max_model_len=96, max_num_seqs=4, max_num_batched_tokens=32, num_blocks=34, enable_prefix_caching=request.param
    )
    plain = TinyTarget(tiny_folder)
    with recorded_signatures() as signatures:
        bench = target.bench(config, RandomK(1, 8), head=tiny_head)
        count = bench.engine.warm_up()
        yield Warm(bench, signatures, count, plain.bench(plain.config(max_model_len=96), FixedK(0)))


def test_warm_up_runs_every_program_once(warm: Warm) -> None:
    """Batches 1 2 3 4, K 0 to 8, contexts 16 24 blocks, 2 variants; chunks 16 32 tokens, 3 variants."""
    assert warm.num_programs == 4 * 9 * 2 * 2 + 2 * 2 * 9 * 3 == len(warm.signatures)
    stats = warm.bench.engine.stats()
    assert (stats.programs, stats.programs_after_warm_up) == (warm.num_programs, 0)
    assert (stats.steps, stats.running, stats.waiting) == (0, 0, 0)
    assert stats.free_blocks == stats.total_blocks


def run_schedule(warm: Warm, seed: int) -> None:
    """K at random each step, arrivals, all ways to choose, chunks, hits, a pool for a sequence and a half, aborts."""
    chance = random.Random(seed)
    bench = warm.bench
    answers: dict[str, Answer] = {}
    requests: dict[str, GenerationRequest] = {}
    for index in range(chance.randint(1, 8)):
        one = requests[str(index)] = asked(str(index), chance)
        answers[one.request_id] = Answer()
        bench.engine.add_request(one)
        for _ in range(chance.choice([0, 0, 1, 4])):
            for output in bench.engine.step():
                answers[output.request_id].token_ids += output.token_ids
                answers[output.request_id].outputs.append(output)
    if chance.random() < 0.3:
        bench.engine.abort("0")
    run_steps(bench.engine, answers)
    # Merged variants, padding and recomputation changed nobody's tokens.
    with recorded_signatures():
        alone = generate(warm.plain.engine, requests.values())
    for key, answer in answers.items():
        assert answer.token_ids == alone[key].token_ids[: len(answer.token_ids)]
        if not answer.outputs or answer.finish_reason is None:
            assert key == "0"
        else:
            assert answer.finish_reason == alone[key].finish_reason


def test_no_schedule_needs_a_program_that_warm_up_did_not_run(warm: Warm) -> None:
    engine, known = warm.bench.engine, set(warm.signatures)
    for seed in range(9):
        run_schedule(warm, seed)
        stats = engine.stats()
        assert (stats.programs, stats.programs_after_warm_up) == (warm.num_programs, 0)
        assert warm.signatures == known
        assert stats.free_blocks == stats.total_blocks

    batches = [batch for plan, _ in warm.bench.runner.steps for batch in plan.batches]
    decoding = [batch for batch in batches if not batch.is_prefill]
    assert {len(batch.sequences) for batch in decoding} == {1, 2, 3, 4}
    assert {batch.num_speculative_tokens for batch in decoding} == set(range(9))
    programs = warm.bench.runner.programs
    assert {programs.of(batch).variant for batch in batches} == {key.variant for key in programs.all()}
    parts = [batch.sequences[0] for batch in batches if batch.is_prefill]
    assert any(0 < part.choice.num_prompt_tokens < part.start + len(part.token_ids) for part in parts), "preempted"
    assert (engine.stats().prefix_cache_hits > 0) == engine.config.enable_prefix_caching


def test_a_program_that_warm_up_did_not_run_is_refused_where_programs_are_compiled(tiny_folder: Path) -> None:
    target = TinyTarget(tiny_folder, backend=CompilingBackend("float32", num_threads=1))
    bench = target.bench(target.config(max_num_seqs=1), FixedK(0), buckets=ShapeBuckets((1,), (16, 64), (8,), (0,), 4))
    assert bench.engine.warm_up() == 2 + 2 * 3
    too_long = ShapeBuckets((1,), (16, 64), (8, 32), (0,), 4)
    bench.runner.programs = replace(bench.runner.programs, buckets=too_long)
    bench.engine.add_request(greedy_request("a", TEXT[:50], 1))
    with pytest.raises(EyrieError, match=r"context_blocks=32.* was not built at warm-up, and nothing is compiled"):
        bench.engine.step()


def test_without_a_compiler_the_largest_programs_run_and_later_ones_are_counted(
    tiny_target: TinyTarget, tiny_head: Path
) -> None:
    bench = tiny_target.bench(tiny_target.config(num_blocks=70), RandomK(2, 8), head=tiny_head)
    count = bench.engine.warm_up()
    assert count == 2 + 6 + 1
    cache = bench.runner._cache  # pyright: ignore[reportPrivateUsage]
    assert cache.workspace_blocks == 8 * 32, "the largest batch over the longest context"
    chance = random.Random(3)
    generate(bench.engine, [asked(str(index), chance) for index in range(30)])
    stats = bench.engine.stats()
    assert stats.programs_after_warm_up == stats.programs - count > 20
    assert cache.workspace_blocks == 8 * 32, "nothing grew"


BUCKETS = {
    "as built": ShapeBuckets.build(8, 64, 128, 4, range(9)),
    "one size": ShapeBuckets((8,), (64,), (32,), (0, 8), 4),
    "exact": ShapeBuckets(tuple(range(1, 9)), tuple(range(1, 65)), tuple(range(1, 33)), tuple(range(9)), 4),
    "odd": ShapeBuckets((3, 11), (23, 71), (5, 17, 32), (0, 5, 8), 4),
}


@pytest.mark.parametrize("k", [0, 8])
def test_padding_to_a_bucket_changes_nothing(k: int, tiny_target: TinyTarget, tiny_head: Path) -> None:
    chance = random.Random(5)
    requests = [asked(str(index), chance) for index in range(14)]
    told: dict[str, dict[str, Answer]] = {}
    for name, buckets in BUCKETS.items():
        bench = tiny_target.bench(tiny_target.config(), FixedK(k), head=tiny_head, buckets=buckets)
        told[name] = generate(bench.engine, requests)
    for request in requests:
        key = request.request_id
        first = told["as built"][key]
        for answers in told.values():
            assert answers[key].token_ids == first.token_ids
            assert answers[key].text == first.text
            assert answers[key].last.acceptance == first.last.acceptance
            assert logprobs_of(answers[key]) == pytest.approx(logprobs_of(first), abs=1e-4)
    assert {len(logprobs_of(answer)) > 0 for answer in told["odd"].values()} == {True, False}


def logprobs_of(answer: Answer) -> list[float]:
    """Of the chosen tokens, then of the prompt's."""
    chosen = [one.logprob for output in answer.outputs for one in output.logprobs or ()]
    return chosen + [one.logprob for output in answer.outputs for one in output.prompt_logprobs or () if one]


def test_a_request_s_cap_between_two_k_drafts_exactly_so_many(tiny_target: TinyTarget, tiny_head: Path) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(6), head=tiny_head, ks=(0, 2, 6))
    generate(bench.engine, [greedy_request("a", TEXT[:9], 20, num_speculative_tokens=4)])
    parts = [part for plan, _ in bench.runner.steps for batch in plan.batches for part in batch.sequences]
    assert [part.num_drafts for part in parts[1:]] == [4] * len(parts[1:])
    keys = {bench.runner.programs.of(batch) for plan, _ in bench.runner.steps for batch in plan.batches}
    assert {(key.is_prefill, key.num_speculative_tokens) for key in keys} == {(True, 6), (False, 6)}


def test_a_k_without_programs_is_refused_in_a_step(tiny_target: TinyTarget, tiny_head: Path) -> None:
    policy = FixedK(2)
    bench = tiny_target.bench(tiny_target.config(), policy, head=tiny_head, ks=(0, 2, 6))
    bench.engine.add_request(greedy_request("a", TEXT[:9], 20))
    bench.engine.step()
    policy.k = 4
    with pytest.raises(ConfigError) as error:
        bench.engine.step()
    assert str(error.value) == (
        "the K policy wants 4 draft tokens (num_speculative_tokens) for a batch of 1; "
        "this engine was built for [0, 2, 6]"
    )


def speculative_config(folder: Path, tiny_head: Path, **changes: Any) -> EngineConfig:
    speculative = {"method": "eagle3", "model": str(tiny_head), "num_speculative_tokens": 4} | changes
    return EngineConfig.model_validate(
        {"model": str(folder), "dtype": "float32", "max_model_len": 64, "max_num_seqs": 2, "num_threads": 1}
        | {"speculative_config": speculative}
    )


@pytest.mark.parametrize(("k", "allowed"), [(5, None), (3, (2, 4)), (-1, None)])
def test_a_k_without_programs_is_refused_at_load(
    k: int, allowed: tuple[int, ...] | None, tiny_folder: Path, tiny_head: Path
) -> None:
    config = speculative_config(tiny_folder, tiny_head, allowed_num_speculative_tokens=allowed)
    built = [0, 2, 4] if allowed else [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match=f"wants {k} draft tokens .* for a batch of 1; .* built for \\{built}"):
        build_engine(config, FixedK(k))


def test_an_engine_from_its_config_knows_its_programs(tiny_folder: Path, tiny_head: Path) -> None:
    config = speculative_config(tiny_folder, tiny_head, allowed_num_speculative_tokens=(4, 2))
    engine = build_engine(config, FixedK(2))
    assert engine.warm_up() == 2 + 2 + 1
    answer = generate(engine, [GenerationRequest("a", TEXT[:5], SamplingParams(temperature=0.0, max_tokens=6))])["a"]
    assert answer.last.acceptance.drafted == 2 * answer.last.acceptance.steps > 0


@pytest.mark.parametrize("allowed", [(), (0,), (2, 3), (5,)])
def test_the_largest_k_must_be_allowed(allowed: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="its largest must be num_speculative_tokens, 4"):
        SpeculativeConfig(
            method="eagle3", model="head", num_speculative_tokens=4, allowed_num_speculative_tokens=allowed
        )

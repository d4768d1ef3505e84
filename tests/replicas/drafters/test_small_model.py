"""The small model as a drafter, against transformers run anew on the whole text."""

import random
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from replicas.config import SpeculativeConfig
from tests.reference.decoding import full_logits, greedy
from tests.reference.hand_built_engine import TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.proposals import assert_proposals, assert_right_whatever_was_accepted
from tests.reference.sentences import checkpoint_error
from tests.reference.tiny_checkpoints import END, VOCAB, write_target

Small = tuple[Path, LlamaForCausalLM]
PROMPTS = {str(n): tuple(random.Random(n).choices(range(END), k=n)) for n in (1, 2, 5, 9, 17, 30)}


def config_of(small: Small) -> SpeculativeConfig:
    return SpeculativeConfig(method="draft_model", model=str(small[0]))


@pytest.mark.parametrize(("seed", "budget"), [(0, 64), (1, 16)])
def test_drafts_are_the_small_model_s_own_greedy_tokens(
    seed: int, budget: int, tiny_target: TinyTarget, small_model: Small
) -> None:
    """Prompts in chunks, batches, K that changes at every step, and prefixes from the cache."""
    config = tiny_target.config(max_num_batched_tokens=budget)
    bench = tiny_target.bench(config, RandomK(seed, 4), speculative=config_of(small_model))

    def reference(text: tuple[int, ...], count: int) -> tuple[int, ...]:
        return greedy(small_model[1], text, count)

    assert assert_proposals(bench, PROMPTS, 8, reference) > 25
    again = {f"again {key}": (*prompt, 3) for key, prompt in PROMPTS.items()}
    assert assert_proposals(bench, again, 5, reference) > 15
    assert bench.engine.stats().prefix_cache_hits > 40


@pytest.mark.parametrize("seed", [0, 1])
def test_drafts_stay_right_whatever_was_accepted_before(
    seed: int, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, small_model: Small
) -> None:
    inner = tiny_target.drafter(tiny_target.config(), config_of(small_model))
    prompts = {key: PROMPTS[key] for key in ("1", "5", "17", "30")}
    answers = {key: greedy(tiny_reference, prompt, 33) for key, prompt in prompts.items()}

    def reference(text: tuple[int, ...], count: int) -> tuple[int, ...]:
        return greedy(small_model[1], text, count)

    assert_right_whatever_was_accepted(tiny_target, inner, prompts, answers, reference, seed)


def test_a_target_that_drafts_for_itself_is_always_right(
    tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tiny_folder: Path
) -> None:
    itself = SpeculativeConfig(method="draft_model", model=str(tiny_folder))
    bench = tiny_target.bench(tiny_target.config(), FixedK(4), speculative=itself)
    answer = generate(bench.engine, [greedy_request("a", PROMPTS["9"], 21)])["a"]
    assert tuple(answer.token_ids) == greedy(tiny_reference, PROMPTS["9"], 21)
    assert answer.last.acceptance.accepted_by_position == (4, 4, 4, 4)


def test_tokens_that_only_the_small_model_s_head_has_are_not_drafted(tiny_target: TinyTarget, tmp_path: Path) -> None:
    """Heads are padded to round sizes; a draft must be an id of the target."""
    reference = write_target(tmp_path, seed=9, vocab_size=VOCAB + 300, num_hidden_layers=1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_target.folder / name).read_bytes())
    wide = SpeculativeConfig(method="draft_model", model=str(tmp_path))
    bench = tiny_target.bench(tiny_target.config(), RandomK(0, 3), speculative=wide)
    beyond = 0

    def cut(text: tuple[int, ...], count: int) -> list[int]:
        nonlocal beyond
        tokens = list(text)
        for _ in range(count):
            logits = full_logits(reference, tokens)[-1]
            beyond += int(logits.argmax()) >= VOCAB
            tokens.append(int(logits[:VOCAB].argmax()))
        return tokens[len(text) :]

    assert assert_proposals(bench, {"a": PROMPTS["9"]}, 12, cut) > 5
    assert beyond > 3


LIMITS = {
    "positions": {"max_position_embeddings": 24},
    "RoPE that changes with length": {
        "max_position_embeddings": 24,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    },
}


@pytest.mark.parametrize("limit", LIMITS)
def test_past_its_own_context_it_drafts_nothing(
    limit: str, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    small = write_target(tmp_path, seed=4, num_hidden_layers=1, **LIMITS[limit])
    short = SpeculativeConfig(method="draft_model", model=str(tmp_path))
    bench = tiny_target.bench(tiny_target.config(), FixedK(3), speculative=short)
    prompts = {key: PROMPTS[key] for key in ("9", "30")}
    answers = generate(bench.engine, [greedy_request(key, prompt, 30) for key, prompt in prompts.items()])
    for key, prompt in prompts.items():
        assert tuple(answers[key].token_ids) == greedy(tiny_reference, prompt, 30)
    assert not bench.runner.drafts_of("30")
    lengths = [length for length, _ in bench.runner.drafts_of("9")]
    assert 16 <= max(lengths) <= 24
    for length, drafts in bench.runner.drafts_of("9"):
        assert drafts == greedy(small, (*prompts["9"], *answers["9"].token_ids)[:length], 3)


def test_another_vocabulary_is_refused(tiny_target: TinyTarget, small_model: Small, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((small_model[0] / name).read_bytes())
    text = (small_model[0] / "tokenizer.json").read_text()
    swapped = text.replace('"a": 64', '"a": 65').replace('"b": 65', '"b": 64')
    assert swapped != text
    (tmp_path / "tokenizer.json").write_text(swapped)
    other = SpeculativeConfig(method="draft_model", model=str(tmp_path))
    assert checkpoint_error(lambda: tiny_target.drafter(tiny_target.config(), other)) == (
        f"{tmp_path} cannot draft for {tiny_target.folder}: method draft_model needs the same vocabulary, but 2 ids "
        "differ, the first of them 64: 'b' there, 'a' in the target"
    )

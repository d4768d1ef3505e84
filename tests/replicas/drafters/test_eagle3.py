"""The EAGLE3 drafter, inside an engine, against a head that recomputes everything from scratch."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from replicas.config import SpeculativeConfig
from tests.reference.decoding import greedy
from tests.reference.eagle3 import Expected
from tests.reference.hand_built_engine import Answer, TinyTarget, generate, greedy_request, run_steps
from tests.reference.k_policies import FixedK
from tests.reference.proposals import assert_right_whatever_was_accepted
from tests.reference.tiny_checkpoints import VOCAB, head_config, head_tensors, write_head

PROMPTS = {
    f"of {length}": tuple(random.Random(length).choices(range(VOCAB - 1), k=length)) for length in (1, 2, 5, 9, 17, 30)
}
NEW_TOKENS = 24


HEADS: dict[str, dict[str, Any]] = {
    "reduced vocabulary": {},
    "other taps": {"eagle_aux_hidden_state_layer_ids": [1, 4]},
    "grouped wide heads": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24},
}


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_those_of_a_head_without_a_cache(
    name: str, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    tensors = write_head(tmp_path, seed=3, **HEADS[name])
    expected = Expected(tiny_reference, tensors, head_config(**HEADS[name]))
    bench = tiny_target.bench(tiny_target.config(), FixedK(3), head=tmp_path)
    answers = generate(bench.engine, [greedy_request(key, prompt, 8) for key, prompt in PROMPTS.items()])
    allowed = set((torch.arange(60) + tensors["d2t"]).tolist())
    seen: set[int] = set()
    for key, prompt in PROMPTS.items():
        proposals = bench.runner.drafts_of(key)
        assert len(proposals) >= 4
        for length, drafts in proposals:
            tokens = (*prompt, *answers[key].token_ids)
            if length <= len(tokens):
                assert drafts == expected.drafts(tokens[:length], 3), f"{key} after {length} tokens"
                seen.update(drafts)
    assert seen <= allowed
    assert len(seen) > 5


def test_drafts_use_the_heads_own_embedding_if_it_has_one(
    tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    tensors = write_head(tmp_path, seed=3)
    tensors["embed_tokens.weight"] = torch.randn(VOCAB, 64, generator=torch.Generator().manual_seed(9))
    save_file(tensors, tmp_path / "model.safetensors")
    prompt = PROMPTS["of 17"]
    bench = tiny_target.bench(tiny_target.config(), FixedK(4), head=tmp_path)
    answer = generate(bench.engine, [greedy_request("a", prompt, 2)])["a"]
    token_ids = (*prompt, *answer.token_ids[:1])
    own = Expected(tiny_reference, tensors, head_config()).drafts(token_ids, 4)
    tensors.pop("embed_tokens.weight")
    shared = Expected(tiny_reference, tensors, head_config()).drafts(token_ids, 4)
    assert bench.runner.drafts_of("a")[0] == (18, own)
    assert own != shared


@pytest.mark.parametrize("seed", range(4))
def test_drafts_stay_right_whatever_was_accepted_before(
    seed: int, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tiny_head: Path
) -> None:
    expected = Expected(tiny_reference, head_tensors(head_config()), head_config())
    answers = {key: greedy(tiny_reference, prompt, NEW_TOKENS + 9) for key, prompt in PROMPTS.items()}
    inner = tiny_target.drafter(tiny_target.config(), SpeculativeConfig(method="eagle3", model=str(tiny_head)))
    assert_right_whatever_was_accepted(tiny_target, inner, PROMPTS, answers, expected.drafts, seed)


def test_after_steps_without_drafts_the_head_has_missed_nothing(tiny_target: TinyTarget, tiny_head: Path) -> None:
    policy = FixedK(0)
    warm = tiny_target.bench(tiny_target.config(), policy, head=tiny_head)
    prompt = PROMPTS["of 9"]
    warm.engine.add_request(greedy_request("warm", prompt, 30))
    answers = {"warm": Answer()}
    for _ in range(6):
        for output in warm.engine.step():
            answers["warm"].token_ids += output.token_ids
    assert len(answers["warm"].token_ids) == 6, "the prompt and 5 decode steps at K=0"
    assert not warm.runner.drafts_of("warm")
    policy.k = 4
    run_steps(warm.engine, answers)
    cold = tiny_target.bench(tiny_target.config(), FixedK(4), head=tiny_head)
    for length, drafts in warm.runner.drafts_of("warm")[:3]:
        known = (*prompt, *answers["warm"].token_ids)[: length - 1]
        generate(cold.engine, [greedy_request(f"cold {length}", known, 2)])
        assert cold.runner.drafts_of(f"cold {length}")[0] == (length, drafts)


@pytest.mark.parametrize("budget", [16, 20, 29])
def test_a_prompt_in_chunks_is_drafted_from_like_a_whole_one(
    budget: int, tiny_target: TinyTarget, tiny_head: Path
) -> None:
    drafts: list[list[tuple[int, tuple[int, ...]]]] = []
    for size in (64, budget):
        bench = tiny_target.bench(tiny_target.config(max_num_batched_tokens=size), FixedK(5), head=tiny_head)
        generate(bench.engine, [greedy_request("a", PROMPTS["of 30"], 6)])
        drafts.append(bench.runner.drafts_of("a"))
    assert drafts[0] == drafts[1]
    assert drafts[0][0][0] == 31


def test_k_that_grows_while_a_prompt_is_prefilled_finds_its_blocks(tiny_target: TinyTarget, tiny_head: Path) -> None:
    """The first draft's KV must not fall into the null block because the sequence was admitted at K=0."""
    policy = FixedK(0)
    config = tiny_target.config(max_num_batched_tokens=16, block_size=4)
    prompt = (PROMPTS["of 30"] * 2)[:31]
    bench = tiny_target.bench(config, policy, head=tiny_head)
    bench.engine.add_request(greedy_request("a", prompt, 3))
    bench.engine.step()
    policy.k = 8
    bench.engine.step()
    part = bench.runner.steps[-1][0].batches[-1].sequences[0]
    assert part.num_propose == 8
    assert len(part.block_table) * 4 >= 31 + 8


LIMIT = 30
SHORT: dict[str, dict[str, Any]] = {
    "positions": {"max_position_embeddings": LIMIT},
    "sliding window": {
        "layer_types": ["sliding_attention"],
        "use_sliding_window": True,
        "sliding_window": LIMIT,
    },
    "dynamic RoPE": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": LIMIT},
}


@pytest.mark.parametrize("name", SHORT)
def test_past_its_own_context_a_head_drafts_nothing_and_the_batch_goes_on(
    name: str, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    """And what it wrote there harms nobody: later prompts find those blocks in the cache."""
    write_head(tmp_path, seed=3, **SHORT[name])
    expected = Expected(tiny_reference, head_tensors(head_config(), 3), head_config())
    bench = tiny_target.bench(tiny_target.config(), FixedK(4), head=tmp_path)
    prompts = {"crosses": PROMPTS["of 17"], "is past": PROMPTS["of 30"], "stays": PROMPTS["of 2"]}
    requests = [greedy_request(key, prompt, 26) for key, prompt in prompts.items()]
    answers = generate(bench.engine, requests)
    whole = {key: (*prompt, *answers[key].token_ids) for key, prompt in prompts.items()}
    again = {"first part": whole["is past"][:20], "all of it": whole["is past"][:50]}
    answers |= generate(bench.engine, [greedy_request(key, prompt, 6) for key, prompt in again.items()])
    whole |= {key: (*prompt, *answers[key].token_ids) for key, prompt in again.items()}
    for key, prompt in (prompts | again).items():
        count = len(whole[key]) - len(prompt)
        assert whole[key][len(prompt) :] == greedy(tiny_reference, prompt, count)
        proposals = bench.runner.drafts_of(key)
        for length, drafts in proposals:
            if length - 1 < LIMIT - 4:
                assert drafts == expected.drafts(whole[key][:length], 4), f"{key} after {length} tokens"
        assert bool(proposals) == (len(prompt) - 1 < LIMIT - 4)
    assert answers["first part"].last.num_cached_tokens == 16
    assert answers["all of it"].last.num_cached_tokens == 48
    batches = [batch for plan, _ in bench.runner.steps for batch in plan.batches if not batch.is_prefill]
    # Position LIMIT - K, that of the last token, is the first without drafts.
    verified = {part.start for batch in batches for part in batch.sequences if part.num_drafts}
    assert max(verified) == LIMIT - 4 - 1
    assert any({part.num_drafts for part in batch.sequences} == {0, 4} for batch in batches), "side by side"

"""Ten thousand mixed requests: nothing is lost, nothing piles up, and the last answer is the first one."""

import gc
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from replicas.config import EngineConfig
from replicas.drafters.eagle3 import Eagle3Drafter
from replicas.drafters.eagle3_head import Eagle3Head
from replicas.kv_cache.paged_cache import PagedCache
from replicas.request import Acceptance, GenerationRequest
from tests.reference.hand_built_engine import Answer, Bench, TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK
from tests.reference.overruled_drafter import Overruled
from tests.reference.scripted_drafter import ScriptedDrafter, continuation
from tests.reference.tiny_checkpoints import END, VOCAB, write_head, write_target

TEXTS = tuple(tuple(random.Random(f"text {seed}").randrange(END) for _ in range(40)) for seed in range(12))
ASKS: list[dict[str, Any]] = [
    {},
    {},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.1, "top_p": 0.8, "top_k": 40},
    {"frequency_penalty": 0.6, "presence_penalty": 0.2},
    {"temperature": 0.7, "repetition_penalty": 1.3, "logit_bias": ((9, 2.0),), "seed": 1},
    {"logprobs": 2},
    {"prompt_logprobs": 1},
    {"stop_token_ids": tuple(range(0, END, 7)), "min_tokens": 2},
    {"stop": ("e", "ab"), "ignore_eos": False},
]
PROBE_TOKENS = 24


@dataclass
class Site:
    """One engine on a target of one layer; `texts` are accepted whenever the target greedily goes on like them."""

    target: TinyTarget
    head: Path
    texts: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    @property
    def config(self) -> EngineConfig:
        """A pool in which four of the longest sequences fit, for up to eight."""
        return self.target.config(max_model_len=96, max_num_batched_tokens=48, num_blocks=97)

    def bench(self, policy: FixedK) -> tuple[Bench, Overruled]:
        """A fresh engine: its head drafts, and the script's drafts are verified, so that some are accepted."""
        target, config = self.target, self.config
        assert config.num_blocks is not None
        with torch.inference_mode():
            head = Eagle3Head(self.head, target.shape, target.model.embedding, target.backend, config.max_model_len)
            shape = head.config
            inner = Eagle3Drafter(head, PagedCache(1, config.num_blocks, 4, shape.num_kv_heads, shape.head_dim))
        drafter = Overruled(inner, ScriptedDrafter(continuation(self.texts, VOCAB), head.tapped_layers))
        return target.bench(config, policy, drafter), drafter

    def probe(self, bench: Bench, drafter: Overruled, policy: FixedK, text: int) -> tuple[list[int], Acceptance, Any]:
        """Tokens, acceptance and the head's own drafts of one greedy answer at K=5, with nothing else running."""
        drafter.kept.clear()
        policy.k = 5
        answer = generate(bench.engine, [greedy_request("probe", TEXTS[text][:17], PROBE_TOKENS)])["probe"]
        return answer.token_ids, answer.last.acceptance, [drafts for _, _, drafts in drafter.kept if drafts]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    target, head = tmp_path_factory.mktemp("one_layer"), tmp_path_factory.mktemp("its_head")
    write_target(target, num_hidden_layers=1)
    write_head(head, eagle_aux_hidden_state_layer_ids=[0, 1])
    site = Site(TinyTarget(target), head)
    plain, _ = site.bench(FixedK(0))
    answers = generate(plain.engine, [greedy_request(str(i), text[:17], 60) for i, text in enumerate(TEXTS)])
    site.texts = [(*text[:17], *answers[str(i)].token_ids) for i, text in enumerate(TEXTS)]
    return site


def asked(request_id: str, chance: random.Random, site: Site) -> GenerationRequest:
    prompt: tuple[int, ...]
    if chance.random() < 0.5:
        # Goes on as a known text does: in the cache, and accepted.
        prompt = chance.choice(site.texts)[: chance.choice([17, 17, 25, 40])]
    else:
        text = chance.choice(TEXTS)
        prompt = (*text[: chance.randint(0, 30)], *(chance.randrange(END) for _ in range(chance.randint(1, 12))))
    cap = chance.choice([None, None, None, 0, 2])
    sampling = {"num_speculative_tokens": cap} | chance.choice(ASKS)
    return greedy_request(request_id, prompt, chance.choice([1, 4, 8, 20]), **sampling)


def run_mixed(bench: Bench, policy: FixedK, requests: range, site: Site) -> dict[str, int]:
    """Requests by number, arriving and leaving at random, K another one each step; how often what happened."""
    chance = random.Random(requests.start)
    waiting = iter(requests)
    answers: dict[str, Answer] = {}
    seen = {"finished": 0, "aborted": 0, "stopped": 0, "accepted": 0, "drafted": 0}
    more = True
    while more or bench.engine.has_work:
        if more and bench.scheduler.num_waiting < 6 and chance.random() < 0.6:
            index = next(waiting, None)
            more = index is not None
            if index is not None:
                one = asked(str(index), chance, site)
                answers[one.request_id] = Answer()
                bench.engine.add_request(one)
        if chance.random() < 0.02 and answers:
            victim = chance.choice(list(answers))
            bench.engine.abort(victim)
            del answers[victim]
            seen["aborted"] += 1
        policy.k = chance.randrange(9)
        for output in bench.engine.step():
            answer = answers[output.request_id]
            answer.token_ids += output.token_ids
            if output.finish_reason is not None:
                assert len(answer.token_ids) == output.num_output_tokens
                seen["finished"] += 1
                seen["stopped"] += output.finish_reason == "stop"
                seen["accepted"] += output.acceptance.accepted
                seen["drafted"] += output.acceptance.drafted
                del answers[output.request_id]
        bench.runner.steps.clear()
    assert not answers
    return seen


def resident_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_after_many_mixed_requests_everything_is_as_it_was(count: int, site: Site) -> None:
    policy = FixedK(5)
    bench, drafter = site.bench(policy)
    bench.engine.warm_up()
    fresh = [site.probe(*site.bench(policy), policy, text) for text in (0, 5, 11)]
    assert [site.probe(bench, drafter, policy, text) for text in (0, 5, 11)] == fresh
    seen = run_mixed(bench, policy, range(count // 5), site)
    drafter.kept.clear()
    before, objects, programs = resident_bytes(), len(gc.get_objects()), bench.engine.stats().programs
    for part in range(1, 5):
        more = run_mixed(bench, policy, range(part * count // 5, (part + 1) * count // 5), site)
        seen = {name: seen[name] + more[name] for name in seen}
        drafter.kept.clear()
        stats = bench.engine.stats()
        assert stats.free_blocks == stats.total_blocks
        assert stats.running == stats.waiting == 0
    stats = bench.engine.stats()
    grown = resident_bytes() - before
    # The name of a program, and its variant, stay: as many as there are programs at most.
    new_objects = len(gc.get_objects()) - objects - 2 * (stats.programs - programs)
    print(f"{count} requests: {seen}, {grown / 2**20:.1f} MiB and {new_objects} objects more, {stats}")
    assert grown < 16 * 2**20, "2 KiB a request, after the first fifth of them"
    assert new_objects < 1000, "one for every eighth request"
    assert seen["finished"] + seen["aborted"] == count
    assert seen["aborted"] > count // 50
    assert seen["stopped"] > count // 50
    assert seen["accepted"] > seen["drafted"] // 20 > 0
    assert stats.prefix_cache_hits > stats.prefix_cache_queries // 5
    cold = [site.probe(bench, drafter, policy, text) for text in (0, 5, 11)]
    assert cold == fresh
    for _, acceptance, drafts in cold:
        assert acceptance.accepted > 15
        assert len(drafts) > 3

"""Where an answer ends: the same place for every K, in text, tokens, log-probabilities and usage."""

import random

import pytest
from transformers import LlamaForCausalLM

from tests.reference.decoding import greedy
from tests.reference.hand_built_engine import Answer, TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK
from tests.reference.scripted_drafter import ScriptedDrafter, continuation
from tests.reference.tiny_checkpoints import END, VOCAB


class Stops:
    """One prompt whose first 16 greedy tokens all differ and print as text, with K=4: runs are [0], [1-5], [6-10]..."""

    def __init__(self, tiny_target: TinyTarget, reference: LlamaForCausalLM) -> None:
        assert tiny_target.codec is not None
        for seed in range(200):
            chance = random.Random(seed)
            self.prompt = tuple(chance.randrange(END) for _ in range(6))
            self.tokens = list(greedy(reference, self.prompt, 16))
            self.pieces = [tiny_target.codec.decode([token]) for token in self.tokens]
            text = "".join(self.pieces)
            unique = all(text.count(piece) == 1 for piece in self.pieces)
            if unique and END not in self.tokens:
                return
        raise AssertionError("no prompt gives 16 different tokens")


@pytest.fixture(scope="session")
def stops(tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM) -> Stops:
    return Stops(tiny_target, tiny_reference)


def answer_to(tiny_target: TinyTarget, stops: Stops, k: int, max_tokens: int, **sampling: object) -> Answer:
    rule = continuation([(*stops.prompt, *stops.tokens)], VOCAB)
    bench = tiny_target.bench(tiny_target.config(), FixedK(k), ScriptedDrafter(rule))
    request = greedy_request("a", stops.prompt, max_tokens, logprobs=1, **sampling)
    answer = generate(bench.engine, [request])["a"]
    told = [one.token_id for output in answer.outputs for one in output.logprobs or ()]
    assert told == answer.token_ids, "log-probabilities are cut where the tokens are"
    stats = bench.engine.stats()
    assert stats.free_blocks == stats.total_blocks
    return answer


@pytest.mark.parametrize("at", [0, 1, 3, 5, 6, 10, 15])
def test_a_stop_token_cuts_at_the_same_place_for_every_k(at: int, tiny_target: TinyTarget, stops: Stops) -> None:
    for k in (0, 1, 4):
        answer = answer_to(tiny_target, stops, k, 16, stop_token_ids=(stops.tokens[at], VOCAB - 2))
        assert answer.token_ids == stops.tokens[: at + 1]
        assert answer.text == "".join(stops.pieces[:at]), "the stop token has no text"
        assert answer.finish_reason == "stop"
        assert answer.last.num_output_tokens == at + 1


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 3), (4, 5), (5, 6), (3, 8), (10, 11), (14, 15)])
def test_a_stop_string_cuts_at_the_same_place_for_every_k(
    first: int, last: int, tiny_target: TinyTarget, stops: Stops
) -> None:
    """Within an accepted run, at its end, and across two runs: (5, 6) and (10, 11) cross at K=4."""
    for k in (0, 1, 4):
        stop = "".join(stops.pieces[first : last + 1])
        answer = answer_to(tiny_target, stops, k, 16, stop=(stop, "never this"))
        assert answer.text == "".join(stops.pieces[:first])
        assert answer.token_ids == stops.tokens[: last + 1]
        assert answer.finish_reason == "stop"
        assert answer.last.num_output_tokens == last + 1


@pytest.mark.parametrize("at", [0, 4, 5, 6])
def test_a_stop_at_max_tokens_is_a_stop(at: int, tiny_target: TinyTarget, stops: Stops) -> None:
    for k in (0, 4):
        by_token = answer_to(tiny_target, stops, k, at + 1, stop_token_ids=(stops.tokens[at],))
        by_string = answer_to(tiny_target, stops, k, at + 1, stop=(stops.pieces[at],))
        assert by_token.token_ids == by_string.token_ids == stops.tokens[: at + 1]
        assert by_token.finish_reason == by_string.finish_reason == "stop"
        assert by_string.text == "".join(stops.pieces[:at])


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 7, 13])
def test_max_tokens_cuts_an_accepted_run(max_tokens: int, tiny_target: TinyTarget, stops: Stops) -> None:
    for k in (0, 1, 4, 8):
        # The start of a stop string at the very end is held back, and must come out when nothing follows.
        answer = answer_to(tiny_target, stops, k, max_tokens, stop=(stops.pieces[max_tokens - 1] + "never this",))
        assert answer.token_ids == stops.tokens[:max_tokens]
        assert answer.text == "".join(stops.pieces[:max_tokens])
        assert answer.finish_reason == "length"
        assert answer.last.num_output_tokens == max_tokens

"""The report of benchmarks.speculation, from answers made by hand."""

from benchmarks.engine_client import EngineAnswer
from benchmarks.speculation import Mode, report, with_largest_k
from benchmarks.timing import Answer
from replicas.config import EngineConfig, SpeculativeConfig
from replicas.request import Acceptance


def answered(seconds: float, token_ids: tuple[int, ...], acceptance: Acceptance) -> EngineAnswer:
    return EngineAnswer(Answer(0.1, 0.1 + seconds, len(token_ids)), token_ids, acceptance)


TEXT = tuple(range(11))


def test_acceptance_is_pooled_over_prompts() -> None:
    mode = Mode(2)
    mode.answers.append(answered(1.0, TEXT, Acceptance(steps=6, drafted=12, accepted=4, accepted_by_position=(3, 1))))
    mode.answers.append(answered(1.0, TEXT, Acceptance(steps=4, drafted=8, accepted=6, accepted_by_position=(4, 2))))
    assert mode.mean_acceptance_length == 2.0
    assert mode.acceptance_by_position == [0.7, 0.3]


def test_report_compares_with_k_0_and_counts_equal_texts() -> None:
    plain = Mode(0, [answered(2.0, TEXT, Acceptance(10)), answered(2.0, TEXT, Acceptance(10))])
    accepted = Acceptance(5, 10, 5, (4, 1))
    speculative = Mode(2, [answered(1.0, TEXT, accepted), answered(1.0, (*TEXT[:-1], 99), accepted)])
    table = report([plain, speculative], [Answer(0.1, 8.1, 11)] * 2).splitlines()
    assert table[2] == "| K=0 | 200.0 | 1.00 | 1.00 | 1.00 |  | 2/2 |"
    assert table[3] == "| K=2 | 100.0 | 2.00 | 1.91 | 2.00 | 0.80 0.20 | 1/2 |"
    assert table[4] == "| transformers generate, fp32 | 800.0 | K=0 over it: 0.25 | | | | |"


def test_the_engine_is_compiled_for_the_largest_k() -> None:
    speculative = SpeculativeConfig(method="eagle3", model="head", num_speculative_tokens=3)
    config = with_largest_k(EngineConfig(model="target", speculative_config=speculative), 6)
    assert config.speculative_config is not None
    assert config.speculative_config.num_speculative_tokens == 6

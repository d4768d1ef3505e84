"""The report of benchmarks.speculation, from answers made by hand."""

from benchmarks.engine_client import EngineAnswer
from benchmarks.metrics import AnswerTrace, Chunk
from benchmarks.speculation import Mode, report
from replicas.request import Acceptance


def answered(seconds: float, token_ids: tuple[int, ...], acceptance: Acceptance) -> EngineAnswer:
    trace = AnswerTrace((Chunk(0.1, 1, True), Chunk(0.1 + seconds, len(token_ids) - 1, True)))
    return EngineAnswer(trace, token_ids, acceptance, 5, "length")


TEXT = tuple(range(11))


def test_report_compares_with_k_0_and_counts_equal_texts() -> None:
    plain = Mode(0, [answered(2.0, TEXT, Acceptance(10)), answered(2.0, TEXT, Acceptance(10))])
    accepted = Acceptance(5, 10, 5, (4, 1))
    speculative = Mode(2, [answered(1.0, TEXT, accepted), answered(1.0, (*TEXT[:-1], 99), accepted)])
    table = report([plain, speculative]).splitlines()
    assert table[2] == "| K=0 | 200.0 | 1.00 | 1.00 | 1.00 |  | 2/2 |"
    assert table[3] == "| K=2 | 100.0 | 2.00 | 1.91 | 2.00 | 0.80 0.20 | 1/2 |"
    assert len(table) == 4

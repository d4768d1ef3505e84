"""What a policy is told, and when."""

from replicas.scheduling.k_policy import DraftFeedback, draft_feedback
from replicas.scheduling.step_plan import BatchPlan, SequencePlan, SequenceResult, StepResult, TokenChoice
from tests.reference.k_policies import FixedK
from tests.reference.scheduler_bench import SchedulerBench, prompt_of

GREEDY = TokenChoice(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)


def part(request_id: str, num_drafts: int) -> SequencePlan:
    return SequencePlan(request_id, (1,) * (1 + num_drafts), 5, num_drafts, None, 3, (1, 2), GREEDY)


def test_feedback_counts_sequences_by_position() -> None:
    batch = BatchPlan((part("a", 3), part("b", 3), part("c", 1), part("d", 0)), 3, is_prefill=False)
    tokens = {"a": (7, 7, 7, 7), "b": (7,), "c": (7, 7), "d": (7,)}
    result = StepResult({name: SequenceResult(found, ()) for name, found in tokens.items()})
    assert draft_feedback(batch, result) == DraftFeedback(4, (3, 2, 2), (2, 1, 1))


class Listener(FixedK):
    """K is fixed; remembers what it was told, and when it was asked."""

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.calls: list[DraftFeedback | str] = []

    def num_speculative_tokens(self, batch_size: int) -> int:
        self.calls.append("asked")
        return super().num_speculative_tokens(batch_size)

    def observe(self, feedback: DraftFeedback) -> None:
        self.calls.append(feedback)


def test_the_scheduler_tells_of_each_decode_step_once_it_is_over() -> None:
    policy = Listener(2)
    bench = SchedulerBench(policy, hit_rate=0.7)
    for name, tokens in (("a", 12), ("b", 9)):
        bench.add(name, prompt_of(6, len(name)), max_tokens=tokens)
    bench.step()
    assert not any(isinstance(call, DraftFeedback) for call in policy.calls), "a prefill drafted nothing yet"
    before = len(policy.calls)
    bench.step()
    told = [call for call in policy.calls[before:] if isinstance(call, DraftFeedback)]
    assert told == [policy.calls[-1]], "once a step, after all questions"
    assert (told[0].batch_size, told[0].drafted_by_position) == (2, (2, 2))
    bench.run()
    told = [call for call in policy.calls if isinstance(call, DraftFeedback)]
    drafted = sum(sum(feedback.drafted_by_position) for feedback in told)
    accepted = sum(sum(feedback.accepted_by_position) for feedback in told)
    answers = [bench.last[name].acceptance for name in ("a", "b")]
    assert drafted == sum(answer.drafted for answer in answers)
    assert accepted == sum(answer.accepted for answer in answers) > 0

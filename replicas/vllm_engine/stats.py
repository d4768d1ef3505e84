"""Figures of a vLLM engine, from what it tells of each step."""

from dataclasses import dataclass, replace
from typing import Any

from replicas.scheduling.k_policy import DraftFeedback


@dataclass(frozen=True, slots=True)
class VllmStats:
    """As of the last step. Names that our own engine has too mean the same."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    steps: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    """Of prompts whose first token is out."""
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    verify_steps: int = 0
    """Sequences x steps that verified drafts."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    k_in_force: int = 0
    """Drafts of the sequence that had most of them in the last step."""

    def after(self, scheduler: Any, iteration: Any) -> "VllmStats":
        """The figures after a step of which vLLM told these SchedulerStats and IterationStats, or None."""
        found = self
        if scheduler is not None:
            cache = scheduler.prefix_cache_stats
            found = replace(
                found,
                running=scheduler.num_running_reqs,
                waiting=scheduler.num_waiting_reqs,
                free_blocks=round(found.total_blocks * (1 - scheduler.kv_cache_usage)),
                steps=found.steps + 1,
                prefix_cache_queries=found.prefix_cache_queries + (cache.queries if cache else 0),
                prefix_cache_hits=found.prefix_cache_hits + (cache.hits if cache else 0),
            )
            found = found._with_drafts(scheduler.spec_decoding_stats)
        if iteration is not None:
            found = replace(
                found,
                generated_tokens=found.generated_tokens + iteration.num_generation_tokens,
                prompt_tokens=found.prompt_tokens + iteration.num_prompt_tokens,
            )
        return found

    def _with_drafts(self, drafts: Any) -> "VllmStats":
        if drafts is None:
            return replace(self, k_in_force=0)
        return replace(
            self,
            verify_steps=self.verify_steps + drafts.num_drafts,
            drafted_tokens=self.drafted_tokens + drafts.num_draft_tokens,
            accepted_tokens=self.accepted_tokens + drafts.num_accepted_tokens,
            k_in_force=sum(count > 0 for count in drafts.num_draft_tokens_per_pos),
        )


def draft_feedback(scheduler: Any) -> DraftFeedback | None:
    """What became of the drafts of the step of which vLLM told these SchedulerStats; None if it verified none."""
    drafts = scheduler.spec_decoding_stats
    if drafts is None:
        return None
    drafted = tuple(count for count in drafts.num_draft_tokens_per_pos if count)
    return DraftFeedback(drafts.num_drafts, drafted, tuple(drafts.num_accepted_tokens_per_pos[: len(drafted)]))

"""Where drafts lie among the tokens of a step: index bookkeeping, without tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Tokens(Protocol):
    """Token ids by index: a list, or an array."""

    def __getitem__(self, index: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class InterleavedDrafts:
    """Indices into the tokens of several requests, each request's ending with its drafts.

    As in the first seed, "SpecDecodeMetadata: Index Bookkeeping".
    """

    cu_num_draft_tokens: tuple[int, ...]
    """Drafts up to and including each request."""
    logits_indices: tuple[int, ...]
    """Tokens after which the target chooses: each request's last one that is no draft, then its drafts."""
    target_logits_indices: tuple[int, ...]
    """Of `logits_indices`, those whose choice is compared with a draft, the one that comes next."""
    bonus_logits_indices: tuple[int, ...]
    """Of `logits_indices`, the last of each request: its choice is the bonus, if all drafts were right."""

    @staticmethod
    def of(token_ends: Sequence[int], num_draft_tokens: Sequence[int]) -> "InterleavedDrafts":
        """From the end of each request's tokens (the cumulative counts, if nothing lies between) and its drafts.

        Raises ValueError for a request without a token that is no draft.
        """
        totals: list[int] = []
        logits: list[int] = []
        targets: list[int] = []
        bonuses: list[int] = []
        previous_end = 0
        for end, drafts in zip(token_ends, num_draft_tokens, strict=True):
            if not 0 <= drafts < end - previous_end:
                raise ValueError(f"{drafts} drafts among {end - previous_end} tokens; one at least is no draft")
            targets += range(len(logits), len(logits) + drafts)
            logits += range(end - 1 - drafts, end)
            bonuses.append(len(logits) - 1)
            totals.append(len(targets))
            previous_end = end
        return InterleavedDrafts(tuple(totals), tuple(logits), tuple(targets), tuple(bonuses))

    def draft_token_ids(self, token_ids: Tokens) -> tuple[int, ...]:
        """The drafts among `token_ids`, in their order."""
        return tuple(token_ids[self.logits_indices[index + 1]] for index in self.target_logits_indices)

"""Drafting with a small language model of its own that has the target's tokenizer (second seed, section 2)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from replicas.drafters.drafter import ProposeInput
from replicas.errors import CheckpointError
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import TargetModel
from replicas.text_codec import TextCodec


class SmallModelDrafter:
    """Reads every token that the target has chosen, then K - 1 of its own; its KV lies in the target's blocks."""

    method = "draft_model"
    tapped_layers: tuple[int, ...] = ()

    def __init__(self, model: TargetModel, cache: PagedCache, vocab_size: int) -> None:
        self.max_positions: int | None = model.config.max_positions
        self._model = model
        self._cache = cache
        self.states = (cache,)
        self._vocab_size = vocab_size
        """Of the target: the small model's head may have more rows, for tokens that do not exist."""

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        """See Drafter.propose. What a rejected draft left in the KV is overwritten, as in the target's."""
        tokens, positions = inputs.known_tokens()
        states = self._forward(tokens, positions, inputs)
        batch = tokens.shape[0]
        if num_speculative_tokens == 0:
            return inputs.last_row.new_empty(batch, 0)
        rows = torch.arange(batch, device=tokens.device, dtype=torch.int32)
        newest = rows * tokens.shape[1] + inputs.last_row + 1
        position = positions.flatten().index_select(0, newest)
        drafts, nowhere = [self._best(states.index_select(0, newest))], torch.zeros_like(position)
        while len(drafts) < num_speculative_tokens:
            position = torch.where(position < nowhere, position, position + 1)
            drafts.append(self._best(self._forward(drafts[-1][:, None], position[:, None], inputs)))
        return torch.stack(drafts, 1)

    def _forward(self, tokens: Tensor, positions: Tensor, inputs: ProposeInput) -> Tensor:
        """Normed states [rows, hidden] of `tokens` [batch, tokens], whose KV is written."""
        model, cache = self._model, self._cache
        attention = model.rotary.attention_inputs(positions, inputs.block_tables, cache, inputs.view)
        # Padding has token -1, which embeds as token 0 into the null block.
        return model.forward(tokens.clamp(min=0), attention, cache)[0]

    def _best(self, states: Tensor) -> Tensor:
        """The most likely next token [rows] int32. Drafts are greedy whatever the target's sampling."""
        return self._model.best(states, self._vocab_size)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """See Drafter.copy_blocks."""
        self._cache.copy_blocks(copies)


def check_vocabulary(folder: Path, target_folder: Path) -> None:
    """Raises CheckpointError unless the tokenizers of both folders give each token the same id."""
    own, target = TextCodec(folder).vocabulary, TextCodec(target_folder).vocabulary
    if own == target:
        return
    own_tokens, target_tokens = ({token_id: token for token, token_id in v.items()} for v in (own, target))
    different = sorted(i for i in own_tokens.keys() | target_tokens.keys() if own_tokens.get(i) != target_tokens.get(i))
    token_id = different[0]
    raise CheckpointError(
        f"{folder} cannot draft for {target_folder}: method draft_model needs the same vocabulary, but "
        f"{len(different)} ids differ, the first of them {token_id}: {own_tokens.get(token_id)!r} there, "
        f"{target_tokens.get(token_id)!r} in the target"
    )

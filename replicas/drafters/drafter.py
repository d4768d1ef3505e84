"""What every drafter is given and must give back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from replicas.devices.device_backend import DeviceState
from replicas.kv_cache.paged_cache import CacheView


@dataclass(frozen=True, slots=True)
class ProposeInput:
    """The verified tokens of a batch as the target left them; a drafter needs no handle to the runner."""

    hidden_states: Tensor
    """[batch * tokens, taps * hidden]: the target's tapped states at each position."""
    final_states: Tensor
    """[batch * tokens, hidden]: the target's normed last states, of which it makes its logits."""
    token_ids: Tensor
    """[batch, tokens] int32: the tokens that ran."""
    next_token_ids: Tensor
    """[batch, tokens] int32: the token that follows each position, final by now."""
    positions: Tensor
    """[batch, tokens] int32; -1 at padding and at rejected drafts."""
    last_row: Tensor
    """[batch] int32: the last row of each sequence that is not padding; drafting goes on from there."""
    block_tables: Tensor
    """[batch, blocks] int32: the target's, which the drafter's own layers share."""
    view: CacheView | None

    def known_tokens(self) -> tuple[Tensor, Tensor]:
        """Final token ids and their positions, int32 [batch, 1 + tokens]: the first that ran, then all next ones.

        For drafters that keep something of each token itself, not of the state before it. The first one is known from
        the step before, but if that step had no slot for it, or another sequence computed the block before, nobody
        has kept it yet.
        """
        tokens = torch.cat([self.token_ids[:, :1], self.next_token_ids], 1)
        next_positions = torch.where(self.positions < 0, -1, self.positions + 1)
        return tokens, torch.cat([self.positions[:, :1], next_positions], 1)


class Drafter(Protocol):
    """Proposes draft tokens. Its KV lives in the same blocks as the target's."""

    method: str
    tapped_layers: tuple[int, ...]
    """Target layers whose input states it wants."""
    max_positions: int | None
    """Tokens of the longest sequence that it was made for; beyond it drafts nothing. None: no limit of its own."""

    @property
    def states(self) -> Sequence[DeviceState]:
        """What it keeps on the device besides its weights: its KV cache, if it has one."""
        ...

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        """Bring the drafter's KV up to date, then draft: [batch, K] int32 target token ids (empty for K = 0).

        -1 from where on it has nothing to draft. No host read, and shapes that depend on those of `inputs` alone.
        """
        ...

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of the drafter's KV, each of `copies` (from, to), as the target's are copied."""
        ...

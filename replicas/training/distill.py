"""A small model for method draft_model: the target's first layers, distilled on the target's own conversations.

    python -m replicas.training.distill --target FOLDER --data DIR --out DIR --layers 3 --steps 400

DIR holds the shards of `replicas.training.generate`. Embedding, head and tokenizer stay the target's, so the result
is a model of its own that any engine loads; its layers learn the target's whole distribution at each answer's tokens.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from replicas.errors import CheckpointError
from replicas.training.distillation import DistillOptions, add_options, distill, options_of, write_provenance
from replicas.training.padded_batches import PaddedBatch, held_out_and_training
from replicas.training.user_turn import around_user_turn


class FirstLayers(nn.Module):
    """The target with its first `layers` layers alone; only those and the last norm learn."""

    def __init__(self, target: Path, layers: int) -> None:
        super().__init__()
        model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        deepest = model.config.num_hidden_layers
        if not 1 <= layers < deepest:
            raise CheckpointError(f"--layers is {layers}; the target has {deepest}, so 1 to {deepest - 1} are allowed")
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
        if getattr(model.config, "layer_types", None):
            model.config.layer_types = model.config.layer_types[:layers]
        for part in (model.get_input_embeddings(), model.get_output_embeddings()):
            part.requires_grad_(False)
        self.model = model

    @property
    def head(self) -> nn.Module:
        """States to logits; the target's."""
        return self.model.get_output_embeddings()

    def drafts(self, batch: PaddedBatch) -> Iterator[tuple[Tensor, Tensor]]:
        """(states, the target's states) [rows, hidden] that should give the same tokens."""
        yield self.model.model(batch.tokens).last_hidden_state[batch.labelled], batch.states[batch.labelled]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3, help="how many of the target's layers are kept")
    add_options(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    options: DistillOptions = options_of(args)
    held_out, training = held_out_and_training(args.data, options.hold_out_shards)
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    marker = around_user_turn(tokenizer)[1]
    module = FirstLayers(args.target, args.layers)
    run = distill(module, held_out, training, marker, module.model.config.hidden_size, options)
    module.model.half().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    made_by = f"python -m replicas.training.distill --layers {args.layers} --target TARGET --data DATA --out OUT"
    method = "the target's first layers, distilled on its distribution at each token of its own answers"
    write_provenance(args.out, made_by, method, options, run)


if __name__ == "__main__":
    main()

"""An MTP layer for method mtp, made afterwards for a target that has none (DeepSeek-V3 report, section 2.2).

    python -m replicas.training.mtp --target FOLDER --data DIR --out DIR --steps 400

DIR holds the shards of `replicas.training.generate`, whose states the layer reads. The result is a folder with the
layer alone, under DeepSeek-V3's names; embedding and head are the target's. Unlike DeepSeek's one layer a depth, one
layer is trained for all: at draft position 2 it reads its own states of position 1, as it will when it is chained.
"""

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from replicas.training.distillation import add_options, distill, options_of, write_provenance
from replicas.training.padded_batches import PaddedBatch, held_out_and_training, padded_batches
from replicas.training.user_turn import around_user_turn

RIDGE = 1e-3
"""Of the mean diagonal of the normal equations."""
FIT_BATCHES = 40


class MtpModule(nn.Module):
    """The layer as a module. It begins as a linear predictor (`fit`) behind which the target's last layer is silent."""

    def __init__(self, target: Path, depth: int) -> None:
        super().__init__()
        model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self.config = model.config
        self.num_target_layers: int = model.config.num_hidden_layers
        self._depth = depth
        hidden, epsilon = model.config.hidden_size, model.config.rms_norm_eps
        self.embedding = model.get_input_embeddings().requires_grad_(False)
        self.head = model.get_output_embeddings().requires_grad_(False)
        self.enorm, self.hnorm = nn.RMSNorm(hidden, epsilon), nn.RMSNorm(hidden, epsilon)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.norm = model.model.norm
        block = model.model
        block.layers = block.layers[-1:]
        block.layers[0].self_attn.layer_idx = 0
        block.config.num_hidden_layers = 1
        if getattr(block.config, "layer_types", None):
            block.config.layer_types = block.config.layer_types[-1:]
        block.norm = nn.Identity()
        self.block = block

    @torch.no_grad()
    def fit(self, batches: Iterable[PaddedBatch]) -> None:
        """Begin with the projection that best predicts the target's next state, by least squares over the answers.

        Attention and MLP add nothing at first: from there their outputs are learnt.
        """
        hidden = self.config.hidden_size
        gram = torch.zeros(3 * hidden, 3 * hidden)
        for batch in batches:
            rows = batch.labelled[:, :-1] & batch.labelled[:, 1:]
            embedded = self.enorm(self.embedding(batch.tokens[:, 1:][rows]))
            # What the last norm has to be given, so that it gives the target's state.
            wanted = batch.states[:, 1:][rows] / self.norm.weight
            joined = torch.cat([embedded, self.hnorm(batch.states[:, :-1][rows]), wanted], -1)
            gram += joined.T @ joined
        inputs = gram[: 2 * hidden, : 2 * hidden]
        inputs += RIDGE * inputs.diagonal().mean() * torch.eye(2 * hidden)
        self.eh_proj.weight.copy_(torch.linalg.solve(inputs, gram[: 2 * hidden, 2 * hidden :]).T)
        self.block.layers[0].self_attn.o_proj.weight.zero_()
        self.block.layers[0].mlp.down_proj.weight.zero_()

    def drafts(self, batch: PaddedBatch) -> Iterator[tuple[Tensor, Tensor]]:
        """See Distilled.drafts. Position d reads the token d after the state, and predicts the one after that."""
        states, embedded = batch.states, self.embedding(batch.tokens)
        last = batch.tokens.shape[1] - 1
        for ahead in range(1, self._depth + 1):
            rows = last - ahead
            both = torch.cat([self.enorm(embedded[:, ahead : ahead + rows]), self.hnorm(states[:, :rows])], -1)
            states = self.block(inputs_embeds=self.eh_proj(both), use_cache=False).last_hidden_state
            # Drafting begins behind the first labelled position, and ends where the target's next token is known.
            drafted = batch.labelled[:, :rows] & batch.labelled[:, ahead : ahead + rows]
            yield self.norm(states)[drafted], batch.states[:, ahead : ahead + rows][drafted]

    def tensors(self) -> dict[str, Tensor]:
        """As DeepSeek-V3 names them, fp16."""
        prefix = f"model.layers.{self.num_target_layers}."
        named: dict[str, Tensor] = {
            **self.block.layers[0].state_dict(),
            "enorm.weight": self.enorm.weight,
            "hnorm.weight": self.hnorm.weight,
            "eh_proj.weight": self.eh_proj.weight,
            "shared_head.norm.weight": self.norm.weight,
        }
        return {prefix + name: value.detach().half().contiguous() for name, value in named.items()}


def write_layer(folder: Path, target: Path, tensors: dict[str, Tensor]) -> None:
    """The layer's checkpoint, whose config.json is the target's and says that there is one MTP layer."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "model.safetensors.part"
    save_file(tensors, part, {"format": "pt"})
    os.replace(part, folder / "model.safetensors")
    config = json.loads((target / "config.json").read_text(encoding="utf-8")) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=2, help="draft positions that are trained")
    add_options(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    options = options_of(args)
    held_out, training = held_out_and_training(args.data, options.hold_out_shards)
    marker = around_user_turn(AutoTokenizer.from_pretrained(args.target))[1]
    module = MtpModule(args.target, args.depth)
    batches = padded_batches(training, marker, module.config.hidden_size, options.conversations)
    module.fit(islice(batches, FIT_BATCHES))
    run = distill(module, held_out, training, marker, module.config.hidden_size, options)
    write_layer(args.out, args.target, module.tensors())
    made_by = f"python -m replicas.training.mtp --depth {args.depth} --target TARGET --data DATA --out OUT"
    method = "one chained layer, distilled on the target's distribution at each token of its own answers"
    write_provenance(args.out, made_by, method, options, run)


if __name__ == "__main__":
    main()

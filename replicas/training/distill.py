"""A small model for method draft_model: the target's first layers, distilled on the target's own conversations.

    python -m replicas.training.distill --target FOLDER --data DIR --out DIR --layers 3 --steps 400

DIR holds the shards of `replicas.training.generate`. Embedding, head and tokenizer stay the target's, so the result
is a model of its own that any engine loads; its layers learn the target's whole distribution at each answer's tokens.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

from replicas.errors import CheckpointError
from replicas.training.shards import find_answer
from replicas.training.user_turn import around_user_turn


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """What shapes a run, besides where things lie."""

    layers: int = 3
    steps: int = 400
    conversations: int = 6
    """A batch."""
    label_rows: int = 320
    """Positions of a batch whose distribution is learnt, drawn among the answers': the head dwarfs the layers."""
    learning_rate: float = 1e-3
    hold_out_shards: int = 1
    product_dtype: str = "bfloat16"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded conversations, and the rows whose next token the target's answer holds."""

    tokens: Tensor
    """[conversations, length] int64."""
    labelled: Tensor
    """[conversations, length] bool."""
    states: Tensor
    """[labelled rows, hidden]: the target's normed last states there."""


def batches(shards: list[Path], marker: list[int], hidden: int, count: int) -> Iterator[Batch]:
    """The conversations of `shards`, `count` at a time."""
    for path in shards:
        shard = load_file(path)
        lengths = shard["lengths"].tolist()
        pairs = zip(shard["tokens"].long().split(lengths), shard["states"][:, -hidden:].split(lengths), strict=True)
        usable = [(*pair, start) for pair in pairs if (start := find_answer(pair[0].tolist(), marker)) is not None]
        for first in range(0, len(usable) - count + 1, count):
            group = usable[first : first + count]
            tokens = pad_sequence([tokens for tokens, _, _ in group], batch_first=True)
            labelled = torch.zeros(tokens.shape, dtype=torch.bool)
            for row, (ids, _, start) in enumerate(group):
                # The last token was never run by the target.
                labelled[row, start - 1 : len(ids) - 1] = True
            states = torch.cat([states[start - 1 : -1] for _, states, start in group])
            yield Batch(tokens, labelled, states.float())


def truncated(target: Path, layers: int) -> Any:
    """The target with its first `layers` layers alone; only those and the last norm learn."""
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
    return model


def agreement(model: Any, held_out: Iterator[Batch]) -> float:
    """Share of the answers' positions at which the small model's best token is the target's."""
    right = total = 0
    with torch.inference_mode():
        for batch in held_out:
            states = model.model(batch.tokens).last_hidden_state[batch.labelled]
            head = model.get_output_embeddings()
            right += int((head(states).argmax(-1) == head(batch.states).argmax(-1)).sum())
            total += len(states)
    return right / max(total, 1)


def loss_of(model: Any, batch: Batch, rows: int, order: torch.Generator) -> Tensor:
    """Cross-entropy against the target's distribution at `rows` labelled positions, less the target's own entropy."""
    head = model.get_output_embeddings()
    kept = torch.randperm(len(batch.states), generator=order)[:rows]
    states = model.model(batch.tokens).last_hidden_state[batch.labelled][kept]
    with torch.no_grad():
        wanted = head(batch.states[kept]).float().log_softmax(-1)
    drafted = head(states).float().log_softmax(-1)
    return nn.functional.kl_div(drafted, wanted, log_target=True, reduction="batchmean")


def train(model: Any, shards: list[Path], marker: list[int], options: DistillOptions) -> list[float]:
    """Distil `model` in place; the loss of each step."""
    order, rows = random.Random(options.seed), torch.Generator().manual_seed(options.seed)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, options.steps // 20, options.steps)
    dtype = getattr(torch, options.product_dtype)
    losses: list[float] = []
    with tqdm(total=options.steps, unit="step") as bar:
        while True:
            for batch in batches(
                order.sample(shards, len(shards)), marker, model.config.hidden_size, options.conversations
            ):
                if len(losses) == options.steps:
                    return losses
                with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                    loss = loss_of(model, batch, options.label_rows, rows)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(learning, 1.0)
                optimizer.step()
                schedule.step()
                losses.append(float(loss.detach()))
                bar.update()
                bar.set_postfix(loss=f"{losses[-1]:.3f}")


def parse_arguments() -> argparse.Namespace:
    """Command line; every field of DistillOptions is an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--data", type=Path, required=True, help="folder of shards")
    parser.add_argument("--out", type=Path, required=True, help="where the small model is written")
    parser.add_argument("--threads", type=int, default=2)
    for name, value in asdict(DistillOptions()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser.parse_args()


def main() -> None:
    """Command line."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    options = DistillOptions(**{name: getattr(args, name) for name in asdict(DistillOptions())})
    shards = sorted(args.data.glob("shard-*.safetensors"))
    if len(shards) <= options.hold_out_shards:
        raise SystemExit(f"error: {args.data} holds {len(shards)} shards; one more than --hold-out-shards is needed")
    held_out, training = shards[: options.hold_out_shards], shards[options.hold_out_shards :]
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    marker = around_user_turn(tokenizer)[1]
    model = truncated(args.target, options.layers)
    began = time.monotonic()
    losses = train(model, training, marker, options)
    seconds = time.monotonic() - began
    agrees = agreement(model, batches(held_out, marker, model.config.hidden_size, options.conversations))
    model.half().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    pieces = torch.tensor(losses).tensor_split(20)
    provenance = {
        "made_by": "python -m replicas.training.distill --target TARGET --data DATA --out OUT",
        "method": "the target's first layers, distilled on its distribution after each token of its own answers",
        "options": asdict(options),
        "seconds": round(seconds),
        "loss": [round(float(piece.mean()), 3) for piece in pieces if len(piece)],
        "held_out_agreement_of_best_tokens": round(agrees, 4),
        "versions": {"torch": torch.__version__},
    }
    (args.out / "PROVENANCE.json").write_text(json.dumps(provenance, indent=2) + "\n")
    print(f"{agrees:.3f} of the held-out answers' tokens are drafted right; written to {args.out}")


if __name__ == "__main__":
    main()

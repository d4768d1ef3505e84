"""Train an EAGLE3 head on the target's own conversations (see `generate`), by the paper's training-time test.

    python -m replicas.training.train --target FOLDER --data DIR --out DIR --work DIR --minutes 40

Resumable: a checkpoint in the work folder is continued. The learning rate follows the share of --minutes that is
spent, so a run ends on time on any machine; what it saw is written to PROVENANCE.json.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm import tqdm

from replicas.training.export import export_config, export_tensors, write_head
from replicas.training.measure import greedy_only
from replicas.training.options import TrainOptions
from replicas.training.provenance import provenance
from replicas.training.trainer import Trainer

MEASURED_CONVERSATIONS = 120
"""Held-out conversations that an export measures at most: all processes wait for it."""


def argument_parser() -> argparse.ArgumentParser:
    """Command line; every field of TrainOptions is an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--data", type=Path, required=True, help="folder of shards")
    parser.add_argument("--out", type=Path, required=True, help="where the head is written")
    parser.add_argument("--work", type=Path, required=True, help="where the checkpoint is kept")
    # No beginning of one of torchrun's options: it would take that for its own.
    parser.add_argument("--from-head", type=Path, help="folder of a head to go on from")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export-minutes", type=float, default=10.0, help="time between exports")
    for name, value in asdict(TrainOptions()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser


def main() -> None:
    """Command line."""
    args = argument_parser().parse_args()
    torch.set_num_threads(args.threads)
    options = TrainOptions(**{name: getattr(args, name) for name in asdict(TrainOptions())})
    args.work.mkdir(parents=True, exist_ok=True)
    checkpoint = args.work / "checkpoint.pt"
    trainer = Trainer(args.target, args.data, args.from_head, options)
    if checkpoint.exists():
        trainer.load(checkpoint)
    held_out = trainer.split()[1] if trainer.peers.rank == 0 else []
    held_out = greedy_only(held_out[:: 1 + len(held_out) // MEASURED_CONVERSATIONS], trainer.target_head)
    config = export_config(trainer.hf_config, trainer.vocab, trainer.config.default_tapped_layers)
    progress, recent = trainer.progress, list[float]()
    exported = progress.seconds
    with tqdm(
        total=round(options.minutes * 60), initial=round(progress.seconds), unit="s", disable=trainer.peers.rank > 0
    ) as bar:
        for batch in trainer.batches():
            recent.append(trainer.step(batch))
            bar.update(round(progress.seconds) - bar.n)
            bar.set_postfix(batch=progress.batches, loss=f"{recent[-1]:.3f}", epoch=progress.epochs)
            if len(recent) == 25:
                progress.losses.append((progress.batches, sum(recent) / len(recent)))
                recent.clear()
            if not trainer.agrees:
                continue
            finished = progress.seconds >= options.minutes * 60
            if trainer.peers.rank == 0 and (finished or progress.seconds - exported >= args.export_minutes * 60):
                exported = progress.seconds
                trainer.save(checkpoint)
                acceptance = trainer.measure(held_out)
                write_head(
                    args.out,
                    export_tensors(trainer.head, trainer.vocab),
                    config,
                    provenance(trainer, acceptance, finished),
                )
                bar.write(f"batch {progress.batches}: {acceptance}")
            if finished:
                return


if __name__ == "__main__":
    main()

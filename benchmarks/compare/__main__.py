"""Which drafter, and which K? The second seed's comparison for a model of yours, measured.

    python -m benchmarks.compare --drafter small,eagle3,mtp,ngram --k 1..8

Writes results/compare/MODEL.md and .json (all answers' figures, and where they came from), and prints the former. A
drafter's folder may follow its name, eagle3=FOLDER; otherwise it is the config's, or configs/drafters/MODEL-NAME.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.compare.contestants import contestants, ks_of
from benchmarks.compare.figures import Figures, figures
from benchmarks.compare.near_ties import differences
from benchmarks.compare.race import Lap, Race, race
from benchmarks.compare.report import NOTES, advice, table
from benchmarks.provenance import provenance
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.errors import EyrieError
from serve_app.checkpoint_paths import PROJECT_ROOT, with_local_checkpoints
from serve_app.serve_config import load_own_model

RESULTS = Path("results/compare")


def figures_of(found: Race) -> list[Figures]:
    """Of every lap, in the order of drafters and K."""
    return [figures(lap, found.plain, differences(found, [one.token_ids for one in lap.answers])) for lap in found.laps]


def as_json(
    model: str, found: Race, all_figures: Sequence[Figures], source: dict[str, str], tokens: int
) -> dict[str, Any]:
    """Figures, and what they were made of, without the texts."""

    def answers(lap: Lap) -> list[dict[str, Any]]:
        return [{name: value for name, value in asdict(one).items() if name != "token_ids"} for one in lap.answers]

    return {
        "provenance": source,
        "model": model,
        "prompts": len(found.prompts),
        "max_tokens": tokens,
        "plain": answers(found.plain),
        "modes": [
            {**asdict(one), "formula": one.formula, "matched": one.matched, "answers": answers(lap)}
            for one, lap in zip(all_figures, found.laps, strict=True)
        ],
    }


def write(stem: Path, markdown: str, content: dict[str, Any]) -> None:
    """`stem`.md and `stem`.json."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(markdown + "\n")
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


def compare(args: argparse.Namespace) -> str:
    """Measure, write, and give back the Markdown. Raises EyrieError, in one sentence."""
    model = load_own_model(args.config, args.model)
    ks = ks_of(args.k)
    drafters = contestants(args.drafter, max(ks), model)
    config = with_local_checkpoints(model.engine_config)
    found = race(config, drafters, ks, read_prompts(args.prompts, args.limit), args.tokens)
    all_figures, source = figures_of(found), provenance()
    where = f"{model.id}, {len(found.prompts)} prompts, up to {args.tokens} tokens each, `{source['command']}`"
    machine = f"{source['machine']}, commit {source['commit']}"
    heading = f"# Drafters of {model.id}\n\n{where}\n\n{machine}"
    markdown = "\n".join([heading, "", table(all_figures), NOTES, "## What to use", "", advice(all_figures)])
    write(args.out or RESULTS / model.id, markdown, as_json(model.id, found, all_figures, source, args.tokens))
    return markdown


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", default=PROJECT_ROOT / "configs/eagle3.yaml")
    parser.add_argument("--drafter", required=True, help="names, perhaps with =FOLDER: small, eagle3, mtp, ngram")
    parser.add_argument("--k", default="1..8", help="draft tokens a step: 1..8 or 1,2,4")
    parser.add_argument("--model", help="id of the model in the config; its first one by default")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help="JSON lines with `turns`")
    parser.add_argument("--limit", type=int, help="number of prompts")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--out", type=Path, help=f"where to write, without suffix; {RESULTS}/MODEL by default")
    args = parser.parse_args(arguments)
    try:
        print(compare(args))
    except EyrieError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Prompts to measure with."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The first user turn of a conversation."""

    category: str
    text: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """As chat messages."""
        return [{"role": "user", "content": self.text}]


def read_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """Prompts of a JSON lines file whose rows have `turns` (a list of user turns) and perhaps `category`.

    With a limit, every n-th row is taken, so that all categories of a sorted file are met.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts = [Prompt(row.get("category", ""), row["turns"][0]) for row in rows]
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[index * len(prompts) // limit] for index in range(limit)]


def with_background(
    prompt: Prompt, others: Sequence[Prompt], min_tokens: int, count_tokens: Callable[[str], int]
) -> Prompt:
    """`prompt` behind as many of `others`, over and over, as it takes to have `min_tokens` tokens of text."""
    background: list[str] = []
    missing = min_tokens - count_tokens(prompt.text)
    for other in cycle(others):
        if missing <= 0:
            break
        background.append(other.text)
        missing -= count_tokens(other.text)
    if not background:
        return prompt
    return Prompt(prompt.category, "\n\n".join(["Earlier questions:", *background, "Now answer this:", prompt.text]))

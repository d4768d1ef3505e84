"""transformers' `generate`, fp32: plain, and assisted by prompt lookup or by a small model.

python -m benchmarks.peers.workers.transformers_generate FOLDER [ASSISTANT]
"""

import sys
import time
from importlib.metadata import version
from typing import Any

from benchmarks.peers.lines import Ask, Told, serve

ASSISTED = "assisted"
LOOKUP_TOKENS = 3
"""That prompt lookup drafts a step: as many as our drafter's K."""


class TokenClock:
    """A streamer that notes when tokens arrive; the first call brings the prompt."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[float, int]] = []

    def put(self, value: Any) -> None:
        """Tokens of a step."""
        self.arrivals.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        """Nothing is left to tell."""


class Transformers:
    """The model of `folder`; assisted by the one in `assistant` if there is one, by prompt lookup otherwise."""

    def __init__(self, folder: str, assistant: str | None = None) -> None:
        self._model = self._load(folder)
        self._assisted: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
        if assistant is not None:
            self._assisted = {"assistant_model": self._load(assistant)}

    @staticmethod
    def _load(folder: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        # No token ends an answer.
        model.generation_config.eos_token_id = None
        return model.eval()

    @property
    def versions(self) -> dict[str, str]:
        """See Peer."""
        return {name: version(name) for name in ("transformers", "torch")}

    def answer(self, ask: Ask) -> Told:
        """See Peer."""
        import torch

        ids = torch.tensor([ask.prompt])
        clock = TokenClock()
        options = self._assisted if ask.mode == ASSISTED else {}
        begin = time.perf_counter()
        with torch.inference_mode():
            text = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=ask.tokens,
                do_sample=False,
                streamer=clock,
                **options,
            )
        arrivals = [(moment - begin, count) for moment, count in clock.arrivals[1:]]
        return Told(arrivals, text[0, len(ask.prompt) :].tolist())


if __name__ == "__main__":
    serve(lambda: Transformers(*sys.argv[1:]))

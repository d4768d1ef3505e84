"""transformers' own `generate`, fp32, greedy."""

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

from benchmarks.metrics import Answer
from benchmarks.workloads import Prompt


class _TokenClock(BaseStreamer):
    """Notes when each token arrives; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


class TransformersPeer:
    """The model of `folder` in fp32."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)

    def answer(self, prompt: Prompt, max_tokens: int) -> Answer:
        """Time one greedy answer."""
        inputs = self._tokenizer.apply_chat_template(
            prompt.messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        clock = _TokenClock()
        begin = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False, streamer=clock)
        arrivals = [moment - begin for moment in clock.times[1:]]
        return Answer(arrivals[0], arrivals[-1], len(arrivals))

"""One GGUF file into a folder of safetensors, config, tokenizer and chat template."""

import json
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from replicas.errors import CheckpointError
from replicas.models.checkpoint import SINGLE_FILE

# What transformers and gguf raise on files they cannot use; they have no error type of their own.
UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, NotImplementedError, RuntimeError)


def convert_gguf(source: Path, folder: Path, bar: "tqdm[Any]") -> None:
    """Write the model of `source` into `folder`, weights in float16; `bar` advances by a step for each of three stages.

    Raises CheckpointError if the file is truncated, no GGUF, or of an architecture that transformers cannot read.
    """
    with quiet_transformers():
        bar.set_description_str("reading tensors")
        check_gguf(source)
        model = load_model(source)
        bar.update()
        bar.set_description_str("reading tokenizer")
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        except UNREADABLE as error:
            raise CheckpointError(f"{source}: the tokenizer cannot be converted: {error}") from error
        bar.update()
        bar.set_description_str("writing safetensors")
        tokenizer.save_pretrained(folder)
        write_weights(model, folder / SINGLE_FILE)
        write_config(model, folder / "config.json")
        bar.update()


def check_gguf(source: Path) -> None:
    """Raise CheckpointError unless `source` is a whole GGUF file."""
    with source.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{source} is no GGUF file: it starts with {magic!r}, not b'GGUF'")
    try:
        GGUFReader(source)
    except UNREADABLE as error:
        raise CheckpointError(f"{source} is a truncated or damaged GGUF file: {error}") from error


def load_model(source: Path) -> PreTrainedModel:
    """The dequantised model, float32."""
    try:
        return AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    except UNREADABLE as error:
        raise CheckpointError(f"{source} cannot be converted: {error}") from error


def write_weights(model: PreTrainedModel, path: Path) -> None:
    """The state in float16, without the head where it is the embedding."""
    tied = "lm_head.weight" if model.config.tie_word_embeddings else None
    state = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items() if name != tied}
    save_file(state, path, metadata={"format": "pt"})
    # safetensors writes files that only their owner may read; a cache may be shared.
    path.chmod(0o644)


def write_config(model: PreTrainedModel, path: Path) -> None:
    """The config, telling what is in the folder now and not how the GGUF was quantised."""
    config = model.config.to_dict()
    for stale in ("quantization_config", "_name_or_path"):
        config.pop(stale, None)
    config.update(architectures=[type(model).__name__], dtype="float16")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextmanager
def quiet_transformers() -> Generator[None, None, None]:
    """Only the caller's bar, which holds the stream already, reaches the screen; errors are still raised."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        # Some of transformers' bars obey no setting.
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
